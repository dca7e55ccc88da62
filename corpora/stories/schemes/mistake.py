"""A mistake and the truth: something breaks, the hero hides it, and telling is better than hiding."""

from ..lexicon import COLOURS, METALS, StoryNoun
from ..scheme import Scheme

THINGS = (
    StoryNoun("vase", COLOURS),
    StoryNoun("clock", METALS),
    StoryNoun("teapot", ("blue", "china", "spotted")),
    StoryNoun("mirror", ("round", "golden", "old")),
    StoryNoun("bowl", ("blue", "glass", "painted")),
    StoryNoun("jug", ("striped", "tall", "clay")),
    StoryNoun("model ship", ("wooden", "white", "tiny")),
    StoryNoun("lamp", ("green", "glass", "brass")),
    StoryNoun("picture", ("old", "framed", "large")),
    StoryNoun("plates", ("white", "blue", "painted"), "a stack of"),
    StoryNoun("eyeglasses", ("round", "golden", "old"), "a pair of"),
)

ACCIDENT = (
    {
        "accident": (
            "{Hero} was throwing a ball in the house, although that was not allowed. It bounced off the wall, [off the "
            "door|off the chair|off the ceiling], off the cat, and crash!"
        ),
        "lesson": "The ball went into the toy box, and from then on it only came out in the garden.",
    },
    {
        "accident": (
            "{Hero} was dusting the shelf to help, and {hero.he} {hero.was} [humming|singing] and dancing as well. One "
            "[wide|wild] swing of the duster, and crash!"
        ),
        "lesson": "{Hero} went on dusting, and {hero.he} went on dancing, but never again at the same time.",
    },
    {
        "accident": (
            "{Hero} only wanted to have a closer look. {Hero.he} climbed on a [stool|chair|box], it tipped over, and "
            "crash!"
        ),
        "lesson": (
            "When {hero} wanted a closer look at something after that, {hero.he} asked, and somebody [stood by|held "
            "out a hand]."
        ),
    },
    {
        "accident": (
            "{Hero} was chasing {friend} around the table in a [wild|noisy] game of tag. The tablecloth slid, and "
            "crash!"
        ),
        "lesson": (
            "The next game of tag was played in the [meadow|orchard], where there was nothing to break but the silence."
        ),
    },
)

HIDING = (
    {
        "hiding": (
            "{Hero} swept the pieces under the rug. But now the rug had a bump, and it seemed to grow bigger every "
            "[hour|minute]."
        ),
        "question": '"Why do you keep looking at the rug?" {elder.asked}.',
        "weight": "That bump was the biggest thing in the whole house.",
    },
    {
        "hiding": (
            "{Hero} put the pieces in a bag and buried it behind the [shed|hedge|hen house]. But at supper {hero.he} "
            "could not swallow a bite of {hero.his} {soup}."
        ),
        "question": '"You are so quiet today," {elder.said}. "Is something wrong?"',
        "weight": "The secret sat in {hero.his} stomach like a [cold potato|stone|lump of dough].",
    },
    {
        "hiding": (
            '"It was the cat," {hero} said, when {elder} came in. The cat looked at {hero} for a long time, and {hero} '
            "could not look back."
        ),
        "question": '"The poor cat will have to sleep outside tonight," {elder.said}.',
        "weight": (
            "Outside, it had started to rain, and the cat was [crying at the door|sitting under the wheelbarrow]."
        ),
    },
    {
        "hiding": (
            "{Hero} [ran|slipped] out of the house, down to the river, and stayed there until it was almost dark. "
            "{Hero.he} threw stones into the water and did not even count the splashes."
        ),
        "question": '"We have been looking for you everywhere," {elder.said}. "Are you hurt?"',
        "weight": "{Elder} was so kind about it that {hero.his} throat began to ache.",
    },
)

REPAIR = (
    {
        "forgive": (
            '{Elder} was silent for a moment. "I am sad about it," {elder.he} said. "But I am also glad, because you '
            'told me the truth."'
        ),
        "repair": (
            "They [sat down|set to work] with a [pot|bottle] of glue and put the pieces together again. It took "
            "[all|the whole] evening, and the cracks looked like little [rivers|roads]."
        ),
    },
    {
        "forgive": (
            '"I [know|know it already]," {elder.said}. "I was only waiting for you to tell me." And {elder.he} put an '
            "arm around {hero}."
        ),
        "repair": (
            "{Hero} wanted to make up for it. For [two|three|four] weeks {hero.he} [fetched the firewood|swept the "
            "yard] and [fed the hens|washed the dishes], until there were enough coins for new glass and new paint."
        ),
    },
    {
        "forgive": (
            "\"When I was young, I broke [a church window|the mayor's window|my father's violin],\" {elder.said}, "
            '"and I hid in a [tree|barrel|barn] for a whole day." {Hero} had to laugh, even with wet eyes.'
        ),
        "repair": (
            "In the morning they took the pieces to {neighbour.full}, who [could mend almost anything|had mended worse "
            "things than that]. By Friday {thing.it} {thing.was} almost as good as new."
        ),
    },
)

OUTLINES = (
    (
        "{opening} In the house of {elder} there was {thing.a}, and nobody was allowed to touch {thing.them}.",
        "{Day}, it happened. {accident} {Thing.the} lay in pieces on the floor.",
        "{hiding} {question}",
        (
            '"[It is nothing|I am only tired|Nothing at all]," {hero.whispered}. '
            '[{weight}|] At last {hero.he} could not bear it. "I broke {thing.the}," {hero.he} said, [and the '
            "words came out very fast|and swallowed hard]."
        ),
        "{forgive} {repair} [{lesson}|]",
    ),
    (
        "Crash! Then it was [very|terribly|strangely] quiet in the [house|room|hall].",
        (
            "{Hero}, {hero.a_kind}, stood among the pieces and did not dare to breathe. A moment ago they had still "
            "been {thing.a}, and it was the pride of {elder}."
        ),
        "{hiding} [{question} {weight}|{question}|{weight}]",
        (
            "All night {hero} turned [from one side to the other|and tossed]. Before breakfast {hero.he} went to "
            '{elder}. "[It was me|I did it|I broke {thing.them}]," {hero.said}. "I am [very|so] sorry."'
        ),
        "{forgive} {repair} [{ending}|]",
    ),
    (
        (
            '"Please be careful with {thing.the}," said {elder}, "for {thing.it} {thing:come} from my mother\'s '
            '[house|kitchen]." {Hero} promised, and {hero.he} meant it.'
        ),
        "[But a promise is quickly forgotten.|For [three|four|nine] days all went well.] {accident}",
        "{hiding} {question} {Hero} turned pink. [{weight}|]",
        (
            '"I have something to tell you," {hero} said in the end, and told the whole story, from the beginning to '
            "the crash. {forgive}"
        ),
        "{repair} [{lesson}|{lesson}|{ending}]",
    ),
)

MISTAKE = Scheme("mistake", THINGS, (ACCIDENT, HIDING, REPAIR), OUTLINES)
