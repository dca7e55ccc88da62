"""Closed classes: determiners, prepositions, adverbs, conjunctions and modals."""

from ..features import Case, Kind, Tense
from .entries import Adverb, Conjunction, Determiner, Modal, Paradigm, Preposition

# Determiners -------------------------------------------------------------------------------------------------------

THE = Determiner("the", "the", "d", Paradigm.ARTICLE, definite=True)
A = Determiner("a", None, "ein", Paradigm.EIN_WORD, definite=False)
NO = Determiner("no", "no", "kein", Paradigm.EIN_WORD, definite=False)
BARE = Determiner("", "", "", Paradigm.INVARIANT, definite=False)
NAMED = Determiner("", None, "", Paradigm.INVARIANT, definite=True)
THIS = Determiner("this", "these", "dies", Paradigm.DER_WORD, definite=True)
EVERY = Determiner("every", None, "jed", Paradigm.DER_WORD, definite=True)
ALL = Determiner(None, "all", "all", Paradigm.DER_WORD, definite=True)
WHICH = Determiner("which", "which", "welch", Paradigm.DER_WORD, definite=True)
MANY = Determiner(None, "many", "viel", Paradigm.QUANTIFIER, definite=False)
SOME = Determiner(None, "some", "einig", Paradigm.QUANTIFIER, definite=False)
HOW_MANY = Determiner(None, "how many", "wie viele", Paradigm.INVARIANT, definite=False)

POSSESSIVES = tuple(
    Determiner(english, english, german, Paradigm.EIN_WORD, definite=True)
    for english, german in (
        ("my", "mein"),
        ("your", "dein"),
        ("his", "sein"),
        ("her", "ihr"),
        ("our", "unser"),
        ("their", "ihr"),
    )
)
NUMERALS = tuple(
    Determiner(None, english, german, Paradigm.INVARIANT, definite=False)
    for english, german in (
        ("two", "zwei"),
        ("three", "drei"),
        ("four", "vier"),
        ("five", "fünf"),
        ("six", "sechs"),
        ("seven", "sieben"),
        ("eight", "acht"),
        ("nine", "neun"),
        ("ten", "zehn"),
        ("eleven", "elf"),
        ("twelve", "zwölf"),
    )
)

# Prepositions: two-way prepositions appear once for place (dative) and once for direction (accusative) -------------

UNDERSIDE = Kind.FURNITURE | Kind.PLANT
LANDMARK = Kind.BUILDING | Kind.PLANT | Kind.SHOP
INSIDE = Kind.ENCLOSURE | Kind.AREA
TOP = Kind.FURNITURE

IN = Preposition("in", "in", Case.DATIVE, INSIDE)
IN_CONTAINER = Preposition("in", "in", Case.DATIVE, Kind.CONTAINER)
ON = Preposition("on", "auf", Case.DATIVE, TOP)
ON_GROUND = Preposition("on", "auf", Case.DATIVE, Kind.GROUND)
AT_VENUE = Preposition("at", "auf", Case.DATIVE, Kind.VENUE)
AT_SITE = Preposition("at", "an", Case.DATIVE, Kind.SITE)
UNDER = Preposition("under", "unter", Case.DATIVE, UNDERSIDE)
BEHIND = Preposition("behind", "hinter", Case.DATIVE, LANDMARK)
IN_FRONT_OF = Preposition("in front of", "vor", Case.DATIVE, LANDMARK)
NEXT_TO = Preposition("next to", "neben", Case.DATIVE, LANDMARK | Kind.FURNITURE)

INTO = Preposition("into", "in", Case.ACCUSATIVE, INSIDE)
INTO_CONTAINER = Preposition("into", "in", Case.ACCUSATIVE, Kind.CONTAINER)
ONTO = Preposition("onto", "auf", Case.ACCUSATIVE, TOP)
PUT_ON = Preposition("on", "auf", Case.ACCUSATIVE, TOP)
PUT_UNDER = Preposition("under", "unter", Case.ACCUSATIVE, UNDERSIDE)
PUT_NEXT_TO = Preposition("next to", "neben", Case.ACCUSATIVE, Kind.FURNITURE)
OVER = Preposition("over", "über", Case.ACCUSATIVE, Kind.SEAT | Kind.CONTAINER)
THROUGH = Preposition("through", "durch", Case.ACCUSATIVE, Kind.AREA)
AROUND = Preposition("around", "um", Case.ACCUSATIVE, Kind.BUILDING | Kind.PLANT)
TO = Preposition("to", "zu", Case.DATIVE, Kind.ENCLOSURE & ~Kind.ROOM | Kind.VENUE | Kind.SITE | Kind.HUMAN)
FROM = Preposition("from", "aus", Case.DATIVE, INSIDE)

WITH_COMPANION = Preposition("with", "mit", Case.DATIVE, Kind.PERSON)
WITH_TOY = Preposition("with", "mit", Case.DATIVE, Kind.TOY | Kind.ANIMAL | Kind.PERSON)
FOR_BENEFIT = Preposition("for", "für", Case.ACCUSATIVE, Kind.PERSON)
OF_DREAMS = Preposition("of", "von", Case.DATIVE, Kind.ANIMATE | Kind.CAR | Kind.BUILDING)
OF_THOUGHTS = Preposition("of", "an", Case.ACCUSATIVE, Kind.PERSON | Kind.PASTRY | Kind.AREA)
ABOUT = Preposition("about", "über", Case.ACCUSATIVE, Kind.PERSON | Kind.TEXT | Kind.ANIMAL)
FOR_ARRIVAL = Preposition("for", "auf", Case.ACCUSATIVE, Kind.PERSON | Kind.TRANSPORT)

LOCATIONS = (IN, ON_GROUND, AT_VENUE, AT_SITE)
POSITIONS = (IN, ON, UNDER, BEHIND, IN_FRONT_OF, NEXT_TO)

# Adverbs -----------------------------------------------------------------------------------------------------------

HABITUAL = (
    Adverb("every day", "jeden Tag", (Tense.PRESENT, Tense.PAST)),
    Adverb("every week", "jede Woche", (Tense.PRESENT, Tense.PAST)),
)
TIME = HABITUAL + tuple(
    Adverb(english, german, tenses)
    for english, german, tenses in (
        ("today", "heute", (Tense.PRESENT, Tense.PROGRESSIVE, Tense.PAST, Tense.FUTURE)),
        ("now", "jetzt", (Tense.PRESENT, Tense.PROGRESSIVE)),
        ("yesterday", "gestern", (Tense.PAST,)),
        ("last week", "letzte Woche", (Tense.PAST,)),
        ("last month", "letzten Monat", (Tense.PAST,)),
        ("last year", "letztes Jahr", (Tense.PAST,)),
        ("this morning", "heute Morgen", (Tense.PAST,)),
        ("two days ago", "vor zwei Tagen", (Tense.PAST,)),
        ("three years ago", "vor drei Jahren", (Tense.PAST,)),
        ("tomorrow", "morgen", (Tense.FUTURE,)),
        ("tomorrow evening", "morgen Abend", (Tense.FUTURE,)),
        ("tonight", "heute Abend", (Tense.FUTURE,)),
        ("soon", "bald", (Tense.FUTURE,)),
        ("next week", "nächste Woche", (Tense.FUTURE,)),
        ("next month", "nächsten Monat", (Tense.FUTURE,)),
        ("next year", "nächstes Jahr", (Tense.FUTURE,)),
        ("in the morning", "am Morgen", (Tense.PRESENT, Tense.PAST)),
        ("in the evening", "am Abend", (Tense.PRESENT, Tense.PAST)),
        ("at night", "in der Nacht", (Tense.PRESENT, Tense.PAST)),
        ("in summer", "im Sommer", (Tense.PRESENT, Tense.PAST, Tense.FUTURE)),
        ("in winter", "im Winter", (Tense.PRESENT, Tense.PAST, Tense.FUTURE)),
        ("on Monday", "am Montag", (Tense.PAST, Tense.FUTURE)),
        ("on Wednesday", "am Mittwoch", (Tense.PAST, Tense.FUTURE)),
        ("on Friday", "am Freitag", (Tense.PAST, Tense.FUTURE)),
        ("on Sunday", "am Sonntag", (Tense.PAST, Tense.FUTURE)),
        ("at 8 o'clock", "um 8 Uhr", (Tense.PRESENT, Tense.PAST, Tense.FUTURE)),
        ("at 10 o'clock", "um 10 Uhr", (Tense.PRESENT, Tense.PAST, Tense.FUTURE)),
        ("at 12 o'clock", "um 12 Uhr", (Tense.PRESENT, Tense.PAST, Tense.FUTURE)),
    )
)
NEVER = Adverb("never", "nie", (Tense.PRESENT, Tense.PAST, Tense.PERFECT))
ALREADY = Adverb("already", "schon", (Tense.PERFECT,))
FREQUENCY = (
    Adverb("always", "immer", (Tense.PRESENT, Tense.PAST)),
    Adverb("often", "oft", (Tense.PRESENT, Tense.PAST)),
    Adverb("sometimes", "manchmal", (Tense.PRESENT, Tense.PAST)),
    Adverb("usually", "meistens", (Tense.PRESENT, Tense.PAST)),
    NEVER,
    ALREADY,
)
SLOWLY = Adverb("slowly", "langsam")
QUICKLY = Adverb("quickly", "schnell")
QUIETLY = Adverb("quietly", "leise")
LOUDLY = Adverb("loudly", "laut")
CAREFULLY = Adverb("carefully", "vorsichtig")
PATIENTLY = Adverb("patiently", "geduldig")
SECRETLY = Adverb("secretly", "heimlich")

WHERE = Adverb("where", "wo")
WHERE_TO = Adverb("where", "wohin")
WHEN = Adverb("when", "wann")
WHY = Adverb("why", "warum")
HOME = Adverb("home", "nach Hause")
AT_HOME = Adverb("at home", "zu Hause")

VERY = Adverb("very", "sehr")
TOO = Adverb("too", "zu")

# Conjunctions ------------------------------------------------------------------------------------------------------

AND = Conjunction("and", "und")
BUT = Conjunction("but", "aber")
BECAUSE = Conjunction("because", "weil")
ALTHOUGH = Conjunction("although", "obwohl")
IF = Conjunction("if", "wenn")
WHEN_PRESENT = Conjunction("when", "wenn")
WHEN_PAST = Conjunction("when", "als")
THAT = Conjunction("that", "dass")
WHETHER = Conjunction("whether", "ob")
INDIRECT = Conjunction("", "")
TO_INFINITIVE = Conjunction("to", "", finite=False)
IN_ORDER_TO = Conjunction("in order to", "um", finite=False)

# Modals ------------------------------------------------------------------------------------------------------------

CAN = Modal("can", "could", auxiliary=True, german="können")
SHOULD = Modal("should", "", auxiliary=True, german="sollen")
MUST = Modal("must", "had to", auxiliary=True, german="müssen")
HAVE_TO = Modal("have to", "had to", auxiliary=False, german="müssen")
WANT_TO = Modal("want to", "wanted to", auxiliary=False, german="wollen")
BE_ALLOWED_TO = Modal("be allowed to", "be allowed to", auxiliary=True, german="dürfen")
WOULD_LIKE_TO = Modal("would like to", "", auxiliary=True, german="möchten")
LIKE_TO = Modal("like to", "liked to", auxiliary=False, german="", adverb="gern")
MODALS = (CAN, SHOULD, MUST, WANT_TO, BE_ALLOWED_TO, WOULD_LIKE_TO, LIKE_TO)
