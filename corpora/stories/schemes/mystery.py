"""A mystery: strange signs in the night, a watch, and a cause that is smaller than the fear of it."""

from ..lexicon import COLOURS, METALS, StoryNoun
from ..scheme import Scheme

THINGS = (
    StoryNoun("lantern", METALS),
    StoryNoun("torch", ("bright", "red", "little")),
    StoryNoun("candle", ("white", "short", "thick")),
    StoryNoun("magnifying glass", ("brass", "round", "old")),
    StoryNoun("notebook", COLOURS),
    StoryNoun("saucepan", ("copper", "dented", "big")),
    StoryNoun("pillow", ("soft", "striped", "feather")),
    StoryNoun("helmet", ("tin", "shiny", "old")),
    StoryNoun("bell", ("brass", "loud", "small")),
    StoryNoun("binoculars", ("black", "old", "heavy"), "a pair of"),
    StoryNoun("boots", ("rubber", "green", "tall"), "a pair of"),
)

SIGNS = (
    {
        "signs": (
            "somebody was stealing the pears. Every night one more was gone from the bowl on the "
            "[windowsill|table|dresser], and in the morning there were only seeds"
        ),
        "guess": "a [greedy|hungry] ghost",
        "noise": "a munching, crunching sound",
        "truth": (
            "It was a tiny dormouse with cheeks as round as [plums|marbles|cherries]. It was storing food for the "
            "winter."
        ),
        "peace": "From then on {hero} put out a pear of its own for the dormouse, and nobody touched the bowl again.",
    },
    {
        "signs": "there was knocking in the attic. Every night it went knock, knock, knock, and then it stopped",
        "guess": "a [pirate|ghost|captain] with a wooden leg",
        "noise": "knock, knock, knock",
        "truth": "It was only a loose [shutter|tile|gutter], and the wind was playing with it.",
        "peace": (
            "{Hero} fixed it with a bit of [wire|string]. That night it was so quiet that {hero.he} almost missed it."
        ),
    },
    {
        "signs": (
            "there were footprints in the flour. They crossed the kitchen floor from the stove to the "
            "[door|pantry|window], and every morning they were there again"
        ),
        "guess": "a troll with tiny feet",
        "noise": "a pitter-patter across the tiles",
        "truth": (
            "It was a tame duck named Matilda, who liked the warmth of the stove and let herself in through the cat "
            "door."
        ),
        "peace": (
            "They made a nest of [rags|straw|old towels] beside the stove, and from then on there was a fresh egg in "
            "it every Sunday."
        ),
    },
    {
        "signs": "a light was moving through the orchard. Every night it went from tree to tree, stopped, and went on",
        "guess": "a robber looking for [gold|treasure]",
        "noise": "slow steps in the dry grass",
        "truth": (
            "It was {neighbour.full} in a [nightcap|nightshirt], who was picking slugs from the young trees, one by "
            "one, so that there would be apples."
        ),
        "peace": (
            "The next night three lights moved through the orchard, because {hero} and {friend} were helping, and "
            "there was hot {soup} for all of them."
        ),
    },
    {
        "signs": (
            "socks were disappearing from the washing line. First it was one, then it was three, and at last there was "
            "not a single pair left in the house"
        ),
        "guess": "a monster with [a hundred|a thousand|forty] feet",
        "noise": "a rustle in the hedge",
        "truth": (
            "It was the neighbour's cat, and in the hedge she had made a bed of socks for [three|four|five] newborn "
            "kittens."
        ),
        "peace": (
            "They let her keep the socks. {Hero} wore odd ones until the {season} was over and did not mind at all."
        ),
    },
)

COURAGE = (
    {
        "courage": (
            "{Hero} would rather have hidden under [the blanket|the bed], but not knowing was worse than knowing."
        ),
        "watch": (
            "So that night {hero} and {friend} sat [behind the door|under the stairs|behind the curtain] with "
            "{thing.a} between them. [The clock struck ten, and eleven, and twelve.|The fire burned low.|Outside, a "
            "dog barked once.]"
        ),
    },
    {
        "courage": (
            '"There must be a reason for it," {friend.said}, but {friend.his} voice was trembling. "Let us find out."'
        ),
        "watch": (
            "[They waited until everyone was asleep.|That night they stayed awake.] {Hero} brought {thing.the}, and "
            "{friend} brought {friend.his} courage, or most of it."
        ),
    },
    {
        "courage": (
            '"I am not afraid," {hero.said}. "I am only [a bit cold|tired]." [And {hero.he} shivered.|But {hero.his} '
            "knees were shaking.]"
        ),
        "watch": (
            "When the moon came up, they crept out [on tiptoe|in their socks]. {Hero} carried {thing.the} and went "
            "first, since {thing.it} {thing.was} the only useful thing that they had."
        ),
    },
    {
        "courage": (
            '"If we do not look, we will wonder for ever," {friend.said}, and that was [true|the end of the '
            "discussion]."
        ),
        "watch": (
            "They drew a plan on the back of [an envelope|a calendar]. {Hero} would keep watch with {thing.the}, and "
            "{friend} would guard the door. Then the waiting began."
        ),
    },
)

OUTLINES = (
    (
        (
            "[Something strange was going on|Something was not right|Odd things were happening] in {hero}'s house: "
            "{signs}."
        ),
        '"Perhaps it is {guess}," {friend.whispered}. {courage}',
        "{watch} Then they heard it: {noise}!",
        (
            "{Hero}'s heart [beat fast|was in {hero.his} mouth|stood still], but {hero.he} looked around the corner. "
            "{truth}"
        ),
        (
            '"[So that is our terrible secret|And we were afraid of that|What a monster]!" {friend.laughed}. {peace} '
            "[{ending}|]"
        ),
    ),
    (
        "{opening} But that {season} nobody slept well, because {signs}. {Hero} told {friend} all about it.",
        '"It sounds like {guess}," {friend.said}. {courage}',
        (
            "{watch} For a long time there was nothing but [the ticking of the clock|their own breathing|a dripping "
            "tap]. And then, quite close, there it was: {noise}."
        ),
        '"[Now|Stop|Got you]!" {hero.cried}, and they jumped forward. {truth}',
        "{Hero} and {friend} looked at each other and [burst out laughing|began to giggle]. {peace}",
    ),
    (
        "Was it {guess}? {Hero} had thought about it for three days. It was a fact that {signs}.",
        (
            "{Hero} was {hero.a_kind}, and {hero.he} wanted to know the truth, so {hero.he} asked {friend} to help. "
            "{courage}"
        ),
        (
            "{watch} [They hardly dared to breathe.|They waited and waited.|Nothing moved.] Suddenly there was "
            "{noise}. {Friend} grabbed {hero} by the [arm|sleeve]."
        ),
        "{truth} All the fear ran out of them like [water out of a tub|air out of a balloon].",
        "{peace} Most monsters, {hero} decided, are quite small when you look at them closely.",
    ),
)

MYSTERY = Scheme("mystery", THINGS, (SIGNS, COURAGE), OUTLINES)
