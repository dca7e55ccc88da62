"""Adjectives: English with its comparative, German with its comparative, and the kinds of noun they describe.

A German stem in brackets is the one endings are added to where it differs: teuer, ein teures Auto.
"""

from collections.abc import Iterator

from ..features import Kind
from .entries import Adjective

GOODS = Kind.PORTABLE | Kind.FURNITURE | Kind.VEHICLE
ATTRACTIVE = Kind.PLANT | Kind.CLOTHING | Kind.VALUABLE | Kind.PICTURE | Kind.AREA | Kind.BUILDING
SOLID = GOODS | Kind.PLANT | Kind.BUILDING

TABLES: tuple[tuple[str, Kind, str], ...] = (
    (
        "size",
        Kind.HUMAN | Kind.ANIMAL | Kind.FURNITURE | Kind.BUILDING | Kind.PLANT | Kind.TOY,
        """
        big bigger: groß größer
        small smaller: klein kleiner
    """,
    ),
    (
        "condition",
        Kind.HUMAN | Kind.ANIMAL,
        """
        tired more_tired: müde müder
        hungry hungrier: hungrig hungriger
        strong stronger: stark stärker
        sick sicker: krank kränker
    """,
    ),
    (
        "mood",
        Kind.HUMAN,
        """
        happy happier: glücklich glücklicher
        sad sadder: traurig trauriger
        curious more_curious: neugierig neugieriger
    """,
    ),
    (
        "wealth",
        Kind.HUMAN,
        """
        rich richer: reich reicher
        poor poorer: arm ärmer
    """,
    ),
    (
        "character",
        Kind.HUMAN,
        """
        clever cleverer: klug klüger
        friendly friendlier: freundlich freundlicher
        lazy lazier: faul fauler
        famous more_famous: berühmt berühmter
        polite more_polite: höflich höflicher
        brave braver: mutig mutiger
    """,
    ),
    (
        "character",
        Kind.ANIMAL,
        """
        clever cleverer: klug klüger
        wild wilder: wild wilder
        dangerous more_dangerous: gefährlich gefährlicher
        brave braver: mutig mutiger
    """,
    ),
    (
        "taste",
        Kind.FRUIT | Kind.PASTRY,
        """
        sweet sweeter: süß süßer
        fresh fresher: frisch frischer
    """,
    ),
    (
        "taste",
        Kind.FRUIT,
        """
        ripe riper: reif reifer
        sour more_sour: sauer(saur) saurer
    """,
    ),
    (
        "temperature",
        Kind.DRINK | Kind.DISH,
        """
        hot hotter: heiß heißer
        cold colder: kalt kälter
    """,
    ),
    (
        "taste",
        Kind.DISH | Kind.PASTRY,
        """
        delicious more_delicious: lecker leckerer
    """,
    ),
    (
        "length",
        Kind.TEXT,
        """
        long longer: lang länger
        short shorter: kurz kürzer
    """,
    ),
    (
        "appeal",
        Kind.TEXT,
        """
        interesting more_interesting: interessant interessanter
        boring more_boring: langweilig langweiliger
        exciting more_exciting: spannend spannender
    """,
    ),
    (
        "price",
        GOODS & ~Kind.TEXT | Kind.FOOD | Kind.DRINK,
        """
        expensive more_expensive: teuer(teur) teurer
        cheap cheaper: billig billiger
    """,
    ),
    (
        "weight",
        Kind.CONTAINER | Kind.FURNITURE,
        """
        heavy heavier: schwer schwerer
    """,
    ),
    (
        "speed",
        Kind.VEHICLE,
        """
        fast faster: schnell schneller
        slow slower: langsam langsamer
    """,
    ),
    (
        "age",
        SOLID & ~Kind.PLANT,
        """
        new newer: neu neuer
    """,
    ),
    (
        "age",
        Kind.HUMAN | Kind.ANIMAL,
        """
        young younger: jung jünger
    """,
    ),
    (
        "age",
        SOLID | Kind.HUMAN | Kind.ANIMAL | Kind.AREA | Kind.GROUND,
        """
        old older: alt älter
    """,
    ),
    (
        "appeal",
        ATTRACTIVE | Kind.HUMAN,
        """
        beautiful more_beautiful: schön schöner
    """,
    ),
    (
        "cleanness",
        Kind.CLOTHING | Kind.OPENING | Kind.ENCLOSURE | Kind.CAR,
        """
        clean cleaner: sauber sauberer
        dirty dirtier: schmutzig schmutziger
    """,
    ),
    (
        "light",
        Kind.ROOM | Kind.SHOP,
        """
        dark darker: dunkel(dunkl) dunkler
        bright brighter: hell heller
    """,
    ),
    (
        "height",
        Kind.PLANT,
        """
        high higher: hoch(hoh) höher
    """,
    ),
    (
        "comfort",
        Kind.CLOTHING | Kind.SEAT,
        """
        comfortable more_comfortable: bequem bequemer
    """,
    ),
    (
        "colour",
        Kind.CLOTHING | Kind.CAR | Kind.CONTAINER | Kind.OPENING | Kind.TOY | Kind.FURNITURE,
        """
        red: rot
        green: grün
        blue: blau
        black: schwarz
        white: weiß
        brown: braun
    """,
    ),
)


def entries() -> Iterator[Adjective]:
    """Yield the adjectives of the tables; one that is in two tables is two entries, for different kinds."""
    for dimension, kinds, table in TABLES:
        for row in filter(None, map(str.strip, table.splitlines())):
            english, german = (side.split() for side in row.split(": "))
            positive, _, stem = german[0].rstrip(")").partition("(")
            comparatives = [side[1].replace("_", " ") if len(side) > 1 else "" for side in (english, german)]
            attributive = stem or positive.removesuffix("e")
            yield Adjective(english[0], comparatives[0], positive, attributive, comparatives[1], kinds, dimension)


ADJECTIVES: tuple[Adjective, ...] = tuple(entries())
