"""A quarrel and a reconciliation: who did what to the thing decides what sets it right."""

from ..lexicon import CLOTHS, COLOURS, StoryNoun
from ..scheme import Scheme

THINGS = (
    StoryNoun("kite", COLOURS),
    StoryNoun("drum", ("red", "round", "blue", "big")),
    StoryNoun("ball", COLOURS),
    StoryNoun("scooter", COLOURS),
    StoryNoun("wagon", ("red", "green", "wooden")),
    StoryNoun("hammock", CLOTHS),
    StoryNoun("hoop", COLOURS),
    StoryNoun("tent", ("green", "striped", "orange")),
    StoryNoun("blocks", ("wooden", "painted", "smooth"), "a box of"),
    StoryNoun("paints", ("bright", "new"), "a box of"),
    StoryNoun("puppets", ("painted", "woollen", "funny"), "a pair of"),
)

CAUSE = (
    {
        "cause": (
            "Both of them wanted to have {thing.them} first. {Hero} pulled on one side, {friend} pulled on the other, "
            "and down they both fell into the [mud|nettles|puddle|wet grass]."
        ),
        "blame": "You always want to be first",
        "mend": (
            '"You go first today," {hero.said}. "No, you," {friend.said}. In the end they tossed a coin, and [nobody '
            "minded|it did not matter] how it landed."
        ),
        "rule": (
            "After that they took turns, and [they used an egg timer so that every turn was fair|nobody counted the "
            "minutes]."
        ),
    },
    {
        "cause": (
            "{Friend} had borrowed {thing.them} without asking, and had left {thing.them} out in the "
            "[rain|garden|yard] all night."
        ),
        "blame": "You should have asked me",
        "mend": (
            '"I should have asked," {friend.said}. "And I should not have shouted," {hero.said}. Together they wiped '
            "the mud from {thing.the} and [put {thing.them} in the sun|set {thing.them} by the stove] to dry."
        ),
        "rule": "From then on, {friend} always asked, and {hero} nearly always said yes.",
    },
    {
        "cause": (
            "{Hero} wanted to paint stars on {thing.them}, and {friend} wanted to paint stripes. They argued until "
            "[their ears were hot|it was nearly dark|even the crows flew away]."
        ),
        "blame": "Your ideas are always silly",
        "mend": (
            '"Stripes are not so bad," {hero.said}. "Stars are quite nice, too," {friend.said}. So they painted stars '
            "between the stripes, and it looked [splendid|wonderful|better than either of them had hoped]."
        ),
        "rule": (
            'Whenever they [disagreed|argued] after that, one of them said "stars and stripes", and they both began to '
            "laugh."
        ),
    },
    {
        "cause": (
            "{Friend} laughed when {hero} tripped over {thing.them}. It was only a small laugh, but it stung like a "
            "[nettle|wasp]."
        ),
        "blame": "You are not my friend any more",
        "mend": (
            '"I am sorry that I laughed," {friend.said}. "It did look funny," {hero} said slowly, and then they were '
            "both laughing, and it did not sting at all."
        ),
        "rule": "{Hero} learned to laugh at {hero.himself} a little, and {friend} learned to look before laughing.",
    },
)

LONELY = (
    {
        "lonely": (
            "{Hero} took {thing.the} home and played alone. But a game for two is no [fun|good] for one. The afternoon "
            "felt as long as a [week|winter|whole year]."
        ),
        "turn": (
            "Then {hero.he} found something in {hero.his} pocket. It was the [smooth white stone|striped "
            "feather|little shell|blue bead] that {friend} had given {hero.him} last {season}."
        ),
    },
    {
        "lonely": (
            "{Friend} went home one way, and {hero} went home the other. Nobody [waved|looked back|said goodbye]. At "
            "supper, {hero} only stirred the {soup} and did not eat."
        ),
        "turn": (
            '"Who is right is a small question," said {elder}. "Who is brave enough to say sorry first is a big one."'
        ),
    },
    {
        "lonely": (
            "The next day {hero} walked past {friend}'s house with {hero.his} nose in the air. {Friend} closed the "
            "shutters. Neither of them was happy."
        ),
        "turn": (
            'In the afternoon {hero} saw two old men on a bench, [sharing|eating] a {food}. "We have been friends for '
            '[fifty|sixty|seventy] years," one of them said, "and we have quarrelled every week."'
        ),
    },
    {
        "lonely": (
            "{Hero} climbed into the {tree} and sulked. From up there {hero.he} could see {friend}, a tiny figure [by "
            "the pond|on the shore], [throwing pebbles|poking a stick] into the water all alone."
        ),
        "turn": (
            "{Hero} had thought that being angry would feel good. It did not. It felt like a [stone in a shoe|lump of "
            "cold porridge]."
        ),
    },
    {
        "lonely": (
            "{Hero} tried to play with the [hens|goat|dog]. It was not the same. [Hens|Goats|Dogs] do not laugh at "
            "jokes, and they do not know any."
        ),
        "turn": (
            "When it began to get dark, {hero} thought of all the evenings when {friend} had walked home with "
            "{hero.him}, because the lane was so gloomy."
        ),
    },
)

MEETING = (
    {
        "meet": (
            "{Hero} ran [down the lane|across the field|over the bridge], and halfway there {hero.he} met {friend}, "
            "who was running the other way."
        ),
    },
    {
        "meet": (
            "{Hero} baked a {food}, carried it across the lane and knocked on {friend}'s door [with {hero.his} "
            "elbow|three times|very gently]."
        ),
    },
    {
        "meet": (
            '{Hero} wrote "I am sorry" on a [scrap|piece|sheet] of paper, folded it into a little bird and let it sail '
            "through {friend}'s window. [A moment|A minute] later the door opened."
        ),
    },
    {
        "meet": (
            "{Hero} went to the place where they had always played, in case {friend} was there. {Friend} was there. "
            "{Friend.he} had come in case {hero} was."
        ),
    },
)

OUTLINES = (
    (
        "{opening} {Hero.his} best friend was {friend}, and the two of them shared {thing.a}.",
        (
            '{Day}, they had a quarrel. {cause} "{blame}!" {hero.cried}. "[And you never listen|Then go home]!" '
            "{friend.cried}."
        ),
        "{lonely}",
        "{turn} {meet}",
        "{mend} {rule} [{ending}|]",
    ),
    (
        '"{blame}!" {hero.cried}, and stamped {hero.his} foot.',
        "It had begun with {thing.a}. {cause} Until that day, {hero} and {friend} had been the best of friends.",
        "{lonely} {turn}",
        (
            "[It was time to do something.|This could not go on.|] {meet} [For a moment neither of them knew what to "
            "say.|They looked at each other, and both looked down.|] {mend}"
        ),
        "{rule} {ending}",
    ),
    (
        (
            "{Hero} and {friend} did everything together. They [picked berries|fished for crabs|rolled down the hill], "
            "they [told each other riddles|sang the same songs], and they played with {thing.a} that belonged to both "
            "of them."
        ),
        (
            "But even [best|the best of] friends can quarrel[| now and then]. {cause} Soon there were [loud words|hot "
            'tears], and the worst of it was when {hero} shouted, "{blame}!"'
        ),
        "{lonely} {turn}",
        "{meet} {mend}",
        "{rule}",
    ),
)

QUARREL = Scheme("quarrel", THINGS, (CAUSE, LONELY, MEETING), OUTLINES)
