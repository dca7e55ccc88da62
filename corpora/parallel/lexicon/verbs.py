"""Verbs: principal parts in both languages and the frame (who does it to what, with which case or preposition).

English parts are 'base past participle' ('base' alone if regular); 'take|off' has a particle that follows pronoun
objects ('takes it off'), 'look+at' one that never moves. German parts are 'infinitive third-person participle'
('infinitive' alone if regular and without an unstressed prefix); 'an|rufen' has a separable prefix; a participle
is written without it. A trailing 'sein' marks the auxiliary of the perfect, which otherwise is 'haben'.
"""

import re

from ..features import Case, Kind
from .entries import Adverb, EnglishVerb, GermanVerb, Preposition, Verb
from .function_words import (
    ABOUT,
    AROUND,
    CAREFULLY,
    FOR_ARRIVAL,
    FROM,
    IN,
    IN_CONTAINER,
    INTO,
    INTO_CONTAINER,
    LOUDLY,
    OF_DREAMS,
    OF_THOUGHTS,
    ON,
    ON_GROUND,
    ONTO,
    OVER,
    PATIENTLY,
    POSITIONS,
    PUT_NEXT_TO,
    PUT_ON,
    PUT_UNDER,
    QUICKLY,
    QUIETLY,
    SECRETLY,
    SLOWLY,
    THROUGH,
    TO,
    UNDER,
    WITH_COMPANION,
    WITH_TOY,
)

PERSON, ANIMATE, ANIMAL, HUMAN = Kind.PERSON, Kind.ANIMATE, Kind.ANIMAL, Kind.HUMAN
GOODS = Kind.PORTABLE | Kind.FURNITURE | Kind.VEHICLE
OUTSIDE = Kind.AREA | Kind.VENUE
INDOORS = Kind.ENCLOSURE & ~Kind.SHOP
ANYWHERE = Kind.ROOM | Kind.AREA | Kind.SITE | Kind.VENUE
WORKPLACE = Kind.ENCLOSURE | OUTSIDE


def consonant_vowel_consonant(word: str) -> bool:
    """Return whether an English stem of one syllable doubles its last letter before -ed and -ing."""
    vowels = [letter in "aeiou" for letter in word]
    return sum(vowels) == 1 and len(word) > 2 and vowels[-2:] == [True, False] and word[-1] not in "wxy"


def regular_past(base: str) -> str:
    """Return the regular past of an English verb."""
    if base.endswith("e"):
        return base + "d"
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ied"
    return base + base[-1] * consonant_vowel_consonant(base) + "ed"


def english_verb(parts: str) -> EnglishVerb:
    """Parse the English principal parts of the notation above."""
    lemma, *forms = parts.split()
    separator = "|" if "|" in lemma else "+"
    base, _, particle = lemma.partition(separator)
    past, participle = forms or [regular_past(base)] * 2
    return EnglishVerb(base, past, participle, particle, separator == "|")


def german_verb(parts: str) -> GermanVerb:
    """Parse the German principal parts of the notation above."""
    lemma, *forms = parts.split()
    auxiliary = forms.pop() if forms and forms[-1] == "sein" else "haben"
    prefix, _, infinitive = lemma.rpartition("|")
    stem = infinitive[:-2] if infinitive.endswith("en") else infinitive[:-1]
    third = forms[0] if forms else stem + "e" * needs_schwa(stem) + "t"
    participle = forms[1] if len(forms) > 1 else "ge" * (not infinitive.endswith("ieren")) + third
    return GermanVerb(infinitive, third, prefix + participle, auxiliary, prefix)


def needs_schwa(stem: str) -> bool:
    """Return whether a German verb stem takes -e- before -st and -t ('arbeitet', 'zeichnet')."""
    return bool(re.search("[td]$|ch[nm]$|[^aeiouäöülrnmh][nm]$", stem))


def verb(
    english: str,
    german: str,
    subjects: Kind,
    objects: Kind = Kind.NOTHING,
    *,
    case: Case = Case.ACCUSATIVE,
    recipient: bool = False,
    after_to: bool = False,
    complements: tuple[Preposition, ...] = (),
    places: Kind = Kind.NOTHING,
    stative: bool = False,
    involuntary: bool = False,
    manners: tuple[Adverb, ...] = (),
) -> Verb:
    """Return the entry of a verb from its principal parts in the notation above."""
    return Verb(
        english_verb(english),
        german_verb(german),
        subjects,
        objects,
        case,
        recipient,
        after_to,
        complements,
        places,
        stative,
        involuntary,
        manners,
    )


INTRANSITIVE = (
    verb("sleep slept slept", "schlafen schläft geschlafen", ANIMATE, places=Kind.ROOM | Kind.AREA),
    verb("laugh", "lachen", PERSON, places=ANYWHERE, manners=(QUIETLY, LOUDLY)),
    verb("cry", "weinen", PERSON, involuntary=True, places=ANYWHERE, manners=(QUIETLY, SECRETLY)),
    verb("work", "arbeiten", PERSON, places=WORKPLACE, manners=(SLOWLY, QUICKLY, QUIETLY)),
    verb("dance", "tanzen", PERSON, places=ANYWHERE, manners=(SLOWLY, SECRETLY)),
    verb("sing sang sung", "singen singt gesungen", PERSON, places=ANYWHERE, manners=(QUIETLY, LOUDLY)),
    verb("smile", "lächeln", PERSON, manners=(PATIENTLY, SECRETLY)),
    verb("wake|up woke woken", "auf|wachen sein", ANIMATE, involuntary=True),
    verb("stand|up stood stood", "auf|stehen steht gestanden sein", PERSON, manners=(SLOWLY, QUICKLY)),
    verb(
        "fall|asleep fell fallen",
        "ein|schlafen schläft geschlafen sein",
        ANIMATE,
        involuntary=True,
        manners=(SLOWLY, QUICKLY),
    ),
    verb("arrive", "an|kommen kommt gekommen sein", PERSON | Kind.TRANSPORT, involuntary=True),
    verb("depart", "ab|fahren fährt gefahren sein", Kind.TRANSPORT, involuntary=True),
    verb("go|shopping went gone", "ein|kaufen", PERSON, places=Kind.VENUE | Kind.SHOP),
)

ACCUSATIVE = (
    verb(
        "eat ate eaten",
        "essen isst gegessen",
        PERSON,
        Kind.FOOD,
        places=Kind.ROOM | Kind.AREA,
        manners=(SLOWLY, QUICKLY, SECRETLY),
    ),
    verb(
        "drink drank drunk",
        "trinken trinkt getrunken",
        PERSON,
        Kind.DRINK,
        places=Kind.ROOM | Kind.AREA,
        manners=(SLOWLY, QUICKLY),
    ),
    verb(
        "buy bought bought",
        "kaufen",
        PERSON,
        GOODS | Kind.FOOD | Kind.DRINK,
        places=Kind.SHOP | Kind.VENUE,
        manners=(SECRETLY,),
    ),
    verb(
        "sell sold sold",
        "verkaufen verkauft verkauft",
        PERSON,
        GOODS | Kind.FOOD | Kind.BUILDING,
        places=Kind.SHOP | Kind.VENUE,
    ),
    verb(
        "read read read",
        "lesen liest gelesen",
        PERSON,
        Kind.TEXT,
        places=ANYWHERE,
        manners=(SLOWLY, QUICKLY, QUIETLY, SECRETLY),
    ),
    verb(
        "write wrote written",
        "schreiben schreibt geschrieben",
        PERSON,
        Kind.TEXT,
        places=Kind.ROOM | Kind.SITE,
        manners=(SLOWLY, QUICKLY, SECRETLY),
    ),
    verb(
        "see saw seen",
        "sehen sieht gesehen",
        ANIMATE,
        ANIMATE | Kind.VEHICLE | Kind.PLANT,
        stative=True,
        places=OUTSIDE | Kind.SITE,
    ),
    verb("hear heard heard", "hören", ANIMATE, ANIMATE | Kind.TRANSPORT, stative=True, places=OUTSIDE),
    verb("find found found", "finden findet gefunden", PERSON, Kind.PORTABLE | ANIMAL, places=ANYWHERE, stative=True),
    verb("look+for", "suchen", PERSON, Kind.PORTABLE | ANIMATE, places=ANYWHERE, manners=(PATIENTLY,)),
    verb("need", "brauchen", PERSON, GOODS, stative=True),
    verb("have had had", "haben hat gehabt", PERSON, GOODS | ANIMAL, stative=True),
    verb("love", "lieben", PERSON, ANIMATE, stative=True),
    verb("like", "mögen mag gemocht", PERSON, ANIMATE | Kind.FOOD | Kind.TEXT | Kind.AREA, stative=True),
    verb("know knew known", "kennen kennt gekannt", PERSON, PERSON, stative=True),
    verb("visit", "besuchen besucht besucht", PERSON, PERSON | Kind.BUILDING | Kind.AREA, manners=(SECRETLY,)),
    verb("call", "an|rufen ruft gerufen", PERSON, PERSON, manners=(SECRETLY,)),
    verb("invite", "ein|laden lädt geladen", PERSON, PERSON),
    verb("pick|up", "ab|holen", PERSON, PERSON, places=Kind.SITE | Kind.VENUE),
    verb("open", "auf|machen", PERSON, Kind.OPENING | Kind.CONTAINER, manners=(SLOWLY, QUIETLY, CAREFULLY)),
    verb("close", "zu|machen", PERSON, Kind.OPENING | Kind.CONTAINER, manners=(SLOWLY, QUIETLY, CAREFULLY)),
    verb("clean", "putzen", PERSON, Kind.OPENING | Kind.ROOM | Kind.CAR, manners=(SLOWLY, QUICKLY)),
    verb("tidy|up", "auf|räumen", PERSON, Kind.ROOM, manners=(SLOWLY, QUICKLY)),
    verb("put|on put put", "an|ziehen zieht gezogen", PERSON, Kind.CLOTHING, manners=(SLOWLY, QUICKLY)),
    verb("take|off took taken", "aus|ziehen zieht gezogen", PERSON, Kind.CLOTHING, manners=(SLOWLY, QUICKLY)),
    verb(
        "throw|away threw thrown", "weg|werfen wirft geworfen", PERSON, Kind.PORTABLE | Kind.FOOD, manners=(SECRETLY,)
    ),
    verb(
        "bring|along brought brought",
        "mit|bringen bringt gebracht",
        PERSON,
        Kind.PORTABLE & ~Kind.CLOTHING | Kind.FOOD | Kind.DRINK,
    ),
    verb("wear wore worn", "tragen trägt getragen", PERSON, Kind.CLOTHING),
    verb("repair", "reparieren", PERSON, Kind.VEHICLE | Kind.SEAT, manners=(SLOWLY, QUICKLY, CAREFULLY)),
    verb("draw drew drawn", "zeichnen", PERSON, ANIMATE | Kind.PLANT | Kind.BUILDING, manners=(SLOWLY, QUICKLY)),
    verb("bake", "backen backt gebacken", PERSON, Kind.PASTRY, places=Kind.ROOM),
    verb("cook", "kochen", PERSON, Kind.DISH),
    verb("cut cut cut", "schneiden schneidet geschnitten", PERSON, Kind.FRUIT | Kind.PASTRY, manners=(CAREFULLY,)),
    verb(
        "wash", "waschen wäscht gewaschen", PERSON, Kind.CLOTHING | Kind.FRUIT | Kind.CAR, manners=(CAREFULLY, QUICKLY)
    ),
    verb("feed fed fed", "füttern", PERSON, ANIMAL, places=OUTSIDE, manners=(CAREFULLY, PATIENTLY)),
    verb("watch", "beobachten beobachtet beobachtet", ANIMATE, ANIMATE, places=OUTSIDE, manners=(QUIETLY, SECRETLY)),
    verb("chase", "jagen", ANIMAL, ANIMAL, places=OUTSIDE),
    verb("bite bit bitten", "beißen beißt gebissen", ANIMAL, ANIMATE, involuntary=True),
    verb("lose lost lost", "verlieren verliert verloren", PERSON, Kind.PORTABLE, involuntary=True, places=OUTSIDE),
    verb("forget forgot forgotten", "vergessen vergisst vergessen", PERSON, Kind.PORTABLE, involuntary=True),
    verb("plant", "pflanzen", PERSON, Kind.PLANT, places=OUTSIDE, manners=(CAREFULLY,)),
    verb("understand understood understood", "verstehen versteht verstanden", PERSON, PERSON | Kind.TEXT, stative=True),
    verb(
        "meet met met", "treffen trifft getroffen", PERSON, PERSON, places=ANYWHERE | Kind.BUILDING, manners=(SECRETLY,)
    ),
    verb("greet", "begrüßen begrüßt begrüßt", PERSON, PERSON, manners=(LOUDLY,)),
    verb("build built built", "bauen", PERSON, Kind.BUILDING),
    verb("steal stole stolen", "stehlen stiehlt gestohlen", PERSON, Kind.PORTABLE | Kind.CAR, manners=(SECRETLY,)),
    verb("look+at", "an|sehen sieht gesehen", PERSON, ANIMATE | Kind.PICTURE | Kind.CLOTHING, manners=(PATIENTLY,)),
    verb("ask", "fragen", PERSON, PERSON),
)

DATIVE = (
    *(
        verb(english, german, PERSON, PERSON, case=Case.DATIVE, stative=stative, manners=manners)
        for english, german, stative, manners in (
            ("help", "helfen hilft geholfen", False, (PATIENTLY, SECRETLY)),
            ("thank", "danken", False, ()),
            ("answer", "antworten", False, (PATIENTLY, QUICKLY, LOUDLY)),
            ("listen+to", "zu|hören", False, (PATIENTLY, SECRETLY)),
            ("follow", "folgen sein", False, (SLOWLY, SECRETLY)),
            ("trust", "vertrauen vertraut vertraut", True, ()),
            ("congratulate", "gratulieren", False, ()),
        )
    ),
    verb("belong+to", "gehören gehört gehört", GOODS, PERSON, case=Case.DATIVE, stative=True),
)

DITRANSITIVE = tuple(
    verb(english, german, PERSON, theme, recipient=True, after_to=after_to)
    for english, german, theme, after_to in (
        ("give gave given", "geben gibt gegeben", Kind.PORTABLE | Kind.FRUIT | Kind.PASTRY, False),
        ("show showed shown", "zeigen", Kind.PORTABLE | Kind.BUILDING | Kind.CAR, False),
        ("send sent sent", "schicken", Kind.TEXT | Kind.VALUABLE | Kind.PICTURE, False),
        ("bring brought brought", "bringen bringt gebracht", Kind.PORTABLE | Kind.FOOD | Kind.DRINK, False),
        ("lend lent lent", "leihen leiht geliehen", Kind.PORTABLE | Kind.CAR, False),
        ("return", "zurück|geben gibt gegeben", Kind.PORTABLE | Kind.CAR, True),
        ("recommend", "empfehlen empfiehlt empfohlen", Kind.TEXT | Kind.FOOD, True),
    )
)

PREPOSITIONAL = (
    verb("wait", "warten", PERSON, complements=(FOR_ARRIVAL,), places=ANYWHERE, manners=(PATIENTLY,)),
    verb(
        "speak spoke spoken",
        "sprechen spricht gesprochen",
        PERSON,
        complements=(WITH_COMPANION,),
        places=ANYWHERE | Kind.BUILDING,
        manners=(QUIETLY, SLOWLY, LOUDLY),
    ),
    verb("talk", "reden", PERSON, complements=(ABOUT,), places=ANYWHERE, manners=(QUIETLY, LOUDLY)),
    verb("dream", "träumen", PERSON, involuntary=True, complements=(OF_DREAMS,), manners=(SECRETLY,)),
    verb("think thought thought", "denken denkt gedacht", PERSON, complements=(OF_THOUGHTS,), stative=True),
    verb("laugh", "lachen", PERSON, complements=(ABOUT,), manners=(LOUDLY, SECRETLY)),
    verb("play", "spielen", HUMAN | ANIMAL, complements=(WITH_TOY,), places=ANYWHERE, manners=(QUIETLY,)),
)

STAY = verb("stay", "bleiben bleibt geblieben sein", ANIMATE, complements=(IN,))

POSITION = (
    verb("sit sat sat", "sitzen sitzt gesessen", ANIMATE, complements=(*POSITIONS, ON_GROUND)),
    verb("stand stood stood", "stehen steht gestanden", PERSON | Kind.CAR, complements=POSITIONS[3:]),
    verb(
        "lie lay lain",
        "liegen liegt gelegen",
        ANIMAL | Kind.TEXT | Kind.CLOTHING | Kind.PICTURE,
        involuntary=True,
        complements=(ON, UNDER),
    ),
    verb(
        "lie lay lain",
        "liegen liegt gelegen",
        Kind.VALUABLE | Kind.TOOL | Kind.TOY,
        involuntary=True,
        complements=(IN_CONTAINER, ON, UNDER),
    ),
    verb("live", "wohnen", PERSON, complements=(IN,), stative=True),
    STAY,
)

MOTION = (
    verb(
        "go went gone", "gehen geht gegangen sein", PERSON, complements=(INTO, TO, THROUGH), manners=(SLOWLY, QUICKLY)
    ),
    verb("run ran run", "laufen läuft gelaufen sein", ANIMATE, complements=(INTO, TO, THROUGH, AROUND)),
    verb(
        "drive drove driven",
        "fahren fährt gefahren sein",
        PERSON,
        complements=(TO, THROUGH),
        manners=(SLOWLY, CAREFULLY),
    ),
    verb("come came come", "kommen kommt gekommen sein", ANIMATE, complements=(INTO, FROM)),
    verb("come+back came come", "zurück|kommen kommt gekommen sein", PERSON, complements=(FROM,)),
    verb("jump", "springen springt gesprungen sein", ANIMATE, complements=(ONTO, OVER)),
    verb("climb", "klettern sein", ANIMATE, complements=(ONTO, OVER), manners=(SLOWLY, CAREFULLY)),
)

CAUSED_MOTION = (
    verb(
        "put put put",
        "legen",
        PERSON,
        Kind.TEXT | Kind.CLOTHING | Kind.TOOL | Kind.TOY | Kind.VALUABLE,
        complements=(PUT_ON, PUT_UNDER, PUT_NEXT_TO, INTO_CONTAINER),
        manners=(CAREFULLY,),
    ),
    verb(
        "carry",
        "tragen trägt getragen",
        PERSON,
        Kind.CONTAINER | Kind.SEAT | Kind.TABLE,
        complements=(INTO, TO),
        manners=(SLOWLY, CAREFULLY),
    ),
    verb(
        "push", "schieben schiebt geschoben", PERSON, Kind.FURNITURE | Kind.CAR, complements=(INTO,), manners=(SLOWLY,)
    ),
    verb("throw threw thrown", "werfen wirft geworfen", PERSON, Kind.TOY | Kind.CLOTHING, complements=(INTO, ONTO)),
)

BE = verb("be was been", "sein ist gewesen sein", Kind.NOTHING, stative=True)
BECOME = verb("become became become", "werden wird geworden sein", ANIMATE, stative=True)
COST = verb("cost cost cost", "kosten kostet gekostet", GOODS, stative=True)
RAIN = verb("rain", "regnen", Kind.NOTHING)
SNOW = verb("snow", "schneien", Kind.NOTHING)
EXIST = verb("be was been", "geben gibt gegeben", Kind.NOTHING, ANIMATE | GOODS | Kind.PLANT, stative=True)

BELIEVING = tuple(
    verb(english, german, PERSON, stative=True)
    for english, german in (
        ("know knew known", "wissen weiß gewusst"),
        ("think thought thought", "denken denkt gedacht"),
        ("believe", "glauben"),
        ("hope", "hoffen"),
        ("say said said", "sagen"),
        ("hear heard heard", "hören"),
    )
)
WONDERING = (BELIEVING[0], verb("ask", "fragen", PERSON, stative=True))
TRYING = (
    verb("try", "versuchen versucht versucht", PERSON),
    verb("forget forgot forgotten", "vergessen vergisst vergessen", PERSON, stative=True),
    verb("promise", "versprechen verspricht versprochen", PERSON, stative=True),
    verb("begin began begun", "beginnen beginnt begonnen", PERSON, stative=True),
)

FRAMES: tuple[tuple[int, tuple[Verb, ...]], ...] = (
    (3, INTRANSITIVE),
    (10, ACCUSATIVE),
    (3, DATIVE),
    (3, DITRANSITIVE),
    (3, PREPOSITIONAL),
    (2, POSITION),
    (3, MOTION),
    (2, CAUSED_MOTION),
)
VERBS: tuple[Verb, ...] = tuple(entry for _, frame in FRAMES for entry in frame)
