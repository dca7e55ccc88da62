"""Helping a neighbour: the hero gives up a plan, and the kindness comes back in kind."""

from ..lexicon import COLOURS, StoryNoun
from ..scheme import Scheme

THINGS = (
    StoryNoun("kite", COLOURS),
    StoryNoun("fishing rod", ("long", "new", "willow")),
    StoryNoun("bicycle", COLOURS),
    StoryNoun("swing", ("rope", "wooden", "new")),
    StoryNoun("canoe", ("birch", "green", "narrow")),
    StoryNoun("telescope", ("brass", "long", "old")),
    StoryNoun("drum", ("big", "red", "round")),
    StoryNoun("wheelbarrow", ("green", "rusty", "blue")),
    StoryNoun("easel", ("wooden", "tall", "folding")),
    StoryNoun("roller skates", ("red", "silver", "old"), "a pair of"),
)

NEED = (
    {
        "need": (
            '{neighbour} was standing on a [chair|barrel|bucket] and looking sadly at a hole in the roof. "It will '
            'rain tonight," {neighbour.he} said, "and my [old knees|stiff legs] cannot climb a ladder."'
        ),
        "work": (
            "{Hero} climbed up and carried one tile after another. The sun was hot, the tiles were "
            "[heavy|rough|slippery], and it took until evening."
        ),
        "done": "That night the rain drummed on the roof, and inside not one drop fell on the floor.",
    },
    {
        "need": (
            "{neighbour} was running up and down the lane, waving [an apron|a broom|both arms]. A gate had been left "
            "open, and eleven geese were marching off to see the world."
        ),
        "work": (
            "{Hero} chased the geese [through the nettles|over the ditch], around the [church|inn|haystack] and out of "
            "the duck pond. The last goose bit {hero.him} in the [leg|ankle|elbow]."
        ),
        "done": (
            "At last all eleven geese were back behind the gate, grumbling, and {neighbour} counted them three times."
        ),
    },
    {
        "need": (
            "{neighbour} was lying in bed with a [cold|cough] and a red nose. Outside, twenty hens were hungry, the "
            "weeds were [high|thick], and there was nobody to look after them."
        ),
        "work": (
            "{Hero} fed the hens, filled the trough and pulled up the weeds, row after row. [The nettles stung.|The "
            "rooster pecked at {hero.his} feet.]"
        ),
        "done": (
            "By sunset the hens were [asleep|clucking happily], the garden was [neat|tidy], and {neighbour} drank a "
            "cup of [hot|mint|sweet] tea and felt much better."
        ),
    },
    {
        "need": (
            "{neighbour} was kneeling on the floor among hundreds of papers. The wind had blown in through the window, "
            "and every recipe, bill and letter lay in one great heap."
        ),
        "work": (
            "{Hero} sat down beside {neighbour.him} and sorted. Recipes went to the left, bills went to the right, and "
            "letters went into the [blue|round|old] tin."
        ),
        "done": (
            "When the clock struck six, the last page was back in its place, and they both had ink on their "
            "[noses|chins|sleeves]."
        ),
    },
    {
        "need": (
            "{neighbour} had a cart full of hay, and the cart had lost a wheel in the middle of the "
            "[road|bridge|field]. Dark clouds were coming nearer."
        ),
        "work": (
            "{Hero} carried the hay to the barn, one armful at a time, while {neighbour} hammered at the wheel. Hay "
            "got into {hero.his} ears and down {hero.his} [neck|back]."
        ),
        "done": "The last armful was in the barn when the first drops fell.",
    },
)

RETURN = (
    {
        "wish": "{Hero.he} had been waiting for a free day to try {hero.his} new {thing}",
        "loss": "Now the day was over, and [there was no light left for playing|the sun had set].",
        "thanks": (
            'But the next morning {neighbour} [knocked at the door|stood at the door]. "I have done your chores for '
            'you," {neighbour.he} said. "Today is all yours." {Hero} whooped, and {thing.the} came out of the shed at '
            "once."
        ),
    },
    {
        "wish": "{Hero.he} {hero.was} on the way to the shop to buy {thing.a} with {hero.his} last coins",
        "loss": "When {hero} finally came to the shop, the door was locked, and {thing.the} had been sold.",
        "thanks": (
            'On Sunday a [big|heavy|strange] parcel stood on the step. In it was {thing.a}, and a card: "I bought '
            '{thing.them} before anybody else could. Thank you. {Neighbour}."'
        ),
    },
    {
        "wish": (
            "{Hero.he} {hero.was} in a hurry, because {friend} was waiting on the hill, and they wanted to try out "
            "{thing.a}"
        ),
        "loss": '"Poor {friend}, all alone on the hill," {hero} thought.',
        "thanks": (
            'But {friend} was waiting at the gate. "I saw what you did," {friend.said}. "Tomorrow we will try '
            '{thing.them} together, and you will go first."'
        ),
    },
)

OUTLINES = (
    (
        "{opening} {Day}, {hero} was in high spirits. {wish}. {aside}",
        "At the corner {hero.he} saw {neighbour.full}. {Need}",
        (
            '{Hero} looked [up at the sun|down the road|back once] and then at {neighbour}. "I will help you," '
            "{hero.said}. {work}"
        ),
        "{done} {loss}",
        "{thanks} [{ending}|]",
    ),
    (
        (
            '"[Could you help me|Is anybody there|Please, have you got a minute]?" a voice called. It was '
            "{neighbour.full}. {Need}"
        ),
        (
            "{Hero}, {hero.a_kind}, [stopped|stood still|hesitated] for a moment. {wish}. [But a neighbour is a "
            "neighbour.|But it had to wait.]"
        ),
        "{work} {done}",
        (
            '"I do not know how to thank you," {neighbour.said}. {Hero} smiled, but {hero.he} {hero.was} a little sad '
            "as well. {loss}"
        ),
        "{thanks}",
    ),
    (
        "It was a {fine} {season} day, and {hero} could not sit still. {wish}.",
        (
            "But next door, at the house of {neighbour.full}, something was wrong. {Need} {Neighbour.he} never asked "
            "for help, and so {hero} did not wait to be asked."
        ),
        "{work} {done} {loss}",
        (
            '{thanks} "A good turn is like a [ball|rubber ball]," {neighbour.said}. "It [bounces|always comes] back." '
            "{ending}"
        ),
    ),
)

NEIGHBOUR = Scheme("helping a neighbour", THINGS, (NEED, RETURN), OUTLINES)
