"""Nouns: English, then German as in a dictionary (article, nominative, genitive, plural).

An English plural that is not regular follows a slash. A noun without a German plural is a mass noun.
"""

from collections.abc import Iterator

from ..features import Gender, Kind
from .entries import Noun

TABLES: dict[Kind, str] = {
    Kind.HUMAN: """
        man/men: der Mann Mannes Männer
        woman/women: die Frau Frau Frauen
        child/children: das Kind Kindes Kinder
        boy: der Junge Jungen Jungen
        girl: das Mädchen Mädchens Mädchen
        father: der Vater Vaters Väter
        mother: die Mutter Mutter Mütter
        brother: der Bruder Bruders Brüder
        sister: die Schwester Schwester Schwestern
        uncle: der Onkel Onkels Onkel
        aunt: die Tante Tante Tanten
        grandmother: die Großmutter Großmutter Großmütter
        grandfather: der Großvater Großvaters Großväter
        daughter: die Tochter Tochter Töchter
        son: der Sohn Sohnes Söhne
        king: der König Königs Könige
        queen: die Königin Königin Königinnen
        doctor: der Arzt Arztes Ärzte
        teacher: der Lehrer Lehrers Lehrer
        student: der Student Studenten Studenten
        farmer: der Bauer Bauern Bauern
        baker: der Bäcker Bäckers Bäcker
        nurse: die Krankenschwester Krankenschwester Krankenschwestern
        actress: die Schauspielerin Schauspielerin Schauspielerinnen
        waitress: die Kellnerin Kellnerin Kellnerinnen
        policeman/policemen: der Polizist Polizisten Polizisten
        tourist: der Tourist Touristen Touristen
        guest: der Gast Gastes Gäste
        friend: der Freund Freundes Freunde
        colleague: der Kollege Kollegen Kollegen
    """,
    Kind.ANIMAL: """
        dog: der Hund Hundes Hunde
        cat: die Katze Katze Katzen
        horse: das Pferd Pferdes Pferde
        cow: die Kuh Kuh Kühe
        bird: der Vogel Vogels Vögel
        mouse/mice: die Maus Maus Mäuse
        rabbit: das Kaninchen Kaninchens Kaninchen
        lion: der Löwe Löwen Löwen
        bear: der Bär Bären Bären
        monkey: der Affe Affen Affen
        duck: die Ente Ente Enten
        pig: das Schwein Schweines Schweine
        goat: die Ziege Ziege Ziegen
    """,
    Kind.FRUIT: """
        apple: der Apfel Apfels Äpfel
        pear: die Birne Birne Birnen
        banana: die Banane Banane Bananen
        lemon: die Zitrone Zitrone Zitronen
        cherry: die Kirsche Kirsche Kirschen
        plum: die Pflaume Pflaume Pflaumen
    """,
    Kind.PASTRY: """
        cake: der Kuchen Kuchens Kuchen
        cookie: der Keks Kekses Kekse
        roll: das Brötchen Brötchens Brötchen
        bread: das Brot Brotes
    """,
    Kind.DISH: """
        soup: die Suppe Suppe Suppen
        egg: das Ei Eies Eier
        potato/potatoes: die Kartoffel Kartoffel Kartoffeln
        sausage: die Wurst Wurst Würste
        meat: das Fleisch Fleisches
        rice: der Reis Reises
    """,
    Kind.DRINK: """
        milk: die Milch Milch
        water: das Wasser Wassers
        coffee: der Kaffee Kaffees
        tea: der Tee Tees
        wine: der Wein Weines
        juice: der Saft Saftes
    """,
    Kind.TEXT: """
        book: das Buch Buches Bücher
        letter: der Brief Briefes Briefe
        newspaper: die Zeitung Zeitung Zeitungen
        poem: das Gedicht Gedichtes Gedichte
        story: die Geschichte Geschichte Geschichten
        novel: der Roman Romans Romane
        report: der Bericht Berichtes Berichte
    """,
    Kind.TOOL: """
        knife/knives: das Messer Messers Messer
        spoon: der Löffel Löffels Löffel
        fork: die Gabel Gabel Gabeln
        pencil: der Bleistift Bleistiftes Bleistifte
        umbrella: der Regenschirm Regenschirms Regenschirme
    """,
    Kind.TOY: """
        ball: der Ball Balles Bälle
        doll: die Puppe Puppe Puppen
    """,
    Kind.VALUABLE: """
        key: der Schlüssel Schlüssels Schlüssel
        clock: die Uhr Uhr Uhren
        camera: die Kamera Kamera Kameras
        gift: das Geschenk Geschenkes Geschenke
        lamp: die Lampe Lampe Lampen
        ring: der Ring Ringes Ringe
    """,
    Kind.CONTAINER: """
        bag: die Tasche Tasche Taschen
        box: die Kiste Kiste Kisten
        basket: der Korb Korbes Körbe
        suitcase: der Koffer Koffers Koffer
    """,
    Kind.PICTURE: """
        picture: das Bild Bildes Bilder
        map: die Karte Karte Karten
    """,
    Kind.CLOTHING: """
        shirt: das Hemd Hemdes Hemden
        coat: der Mantel Mantels Mäntel
        hat: der Hut Hutes Hüte
        dress: das Kleid Kleides Kleider
        shoe: der Schuh Schuhs Schuhe
        jacket: die Jacke Jacke Jacken
        skirt: der Rock Rockes Röcke
    """,
    Kind.SEAT: """
        chair: der Stuhl Stuhles Stühle
        sofa: das Sofa Sofas Sofas
        bench: die Bank Bank Bänke
        bed: das Bett Bettes Betten
    """,
    Kind.TABLE: """
        table: der Tisch Tisches Tische
        shelf/shelves: das Regal Regals Regale
    """,
    Kind.OPENING: """
        door: die Tür Tür Türen
        window: das Fenster Fensters Fenster
    """,
    Kind.ROOM: """
        room: das Zimmer Zimmers Zimmer
        kitchen: die Küche Küche Küchen
        office: das Büro Büros Büros
        cellar: der Keller Kellers Keller
    """,
    Kind.BUILDING: """
        house: das Haus Hauses Häuser
        school: die Schule Schule Schulen
        church: die Kirche Kirche Kirchen
        hospital: das Krankenhaus Krankenhauses Krankenhäuser
        hotel: das Hotel Hotels Hotels
        museum: das Museum Museums Museen
        library: die Bibliothek Bibliothek Bibliotheken
        castle: das Schloss Schlosses Schlösser
        tower: der Turm Turmes Türme
    """,
    Kind.SHOP: """
        shop: der Laden Ladens Läden
        bakery: die Bäckerei Bäckerei Bäckereien
        supermarket: der Supermarkt Supermarktes Supermärkte
    """,
    Kind.AREA: """
        garden: der Garten Gartens Gärten
        forest: der Wald Waldes Wälder
        park: der Park Parks Parks
        city: die Stadt Stadt Städte
        village: das Dorf Dorfes Dörfer
    """,
    Kind.GROUND: """
        street: die Straße Straße Straßen
        bridge: die Brücke Brücke Brücken
        meadow: die Wiese Wiese Wiesen
    """,
    Kind.VENUE: """
        market: der Markt Marktes Märkte
        playground: der Spielplatz Spielplatzes Spielplätze
        farm: der Bauernhof Bauernhofes Bauernhöfe
    """,
    Kind.SITE: """
        lake: der See Sees Seen
        river: der Fluss Flusses Flüsse
        train station: der Bahnhof Bahnhofs Bahnhöfe
    """,
    Kind.CAR: """
        car: das Auto Autos Autos
        bicycle: das Fahrrad Fahrrades Fahrräder
        truck: der Lastwagen Lastwagens Lastwagen
    """,
    Kind.TRANSPORT: """
        bus: der Bus Busses Busse
        train: der Zug Zuges Züge
        ship: das Schiff Schiffes Schiffe
    """,
    Kind.PLANT: """
        tree: der Baum Baumes Bäume
        flower: die Blume Blume Blumen
        rose: die Rose Rose Rosen
    """,
}

NAMES = {"Anna": Gender.FEMININE, "Julia": Gender.FEMININE, "Paul": Gender.MASCULINE, "Peter": Gender.MASCULINE}


def english_plural(singular: str) -> str:
    """Return the regular plural of an English noun."""
    if singular.endswith(("s", "sh", "ch", "x")):
        return singular + "es"
    if singular.endswith("y") and singular[-2] not in "aeou":
        return singular[:-1] + "ies"
    return singular + "s"


def entries() -> Iterator[Noun]:
    """Yield the nouns of the tables and the proper names."""
    for kind, table in TABLES.items():
        for row in filter(None, map(str.strip, table.splitlines())):
            english, german = row.split(": ")
            singular, _, irregular = english.partition("/")
            article, nominative, genitive, *plural = german.split()
            plurals = (irregular or english_plural(singular), plural[0]) if plural else ("", "")
            yield Noun(singular, plurals[0], Gender(article), nominative, genitive, plurals[1], kind)
    for name, gender in NAMES.items():
        yield Noun(name, "", gender, name, name + "s", "", Kind.NAME)


SIMPLE_NOUNS: tuple[Noun, ...] = tuple(entries())
