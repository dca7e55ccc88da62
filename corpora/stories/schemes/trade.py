"""A chain of trades: each swap helps somebody, and the last one brings back more than was given."""

from ..lexicon import COLOURS, METALS, StoryNoun
from ..scheme import Scheme

THINGS = (
    StoryNoun("bicycle", COLOURS),
    StoryNoun("compass", METALS),
    StoryNoun("parrot", ("green", "blue", "clever")),
    StoryNoun("trumpet", ("brass", "shiny", "old")),
    StoryNoun("rowing boat", COLOURS),
    StoryNoun("toy train", ("red", "wooden", "tin")),
    StoryNoun("cuckoo clock", ("brown", "carved", "funny")),
    StoryNoun("globe", ("round", "painted", "dusty")),
    StoryNoun("cape", ("purple", "blue", "velvet")),
    StoryNoun("skates", ("silver", "red", "new"), "a pair of"),
    StoryNoun("chess pieces", ("ivory", "carved", "wooden"), "a set of"),
)

FIRST_SWAP = (
    {
        "first": (
            'On the way {hero.he} met a tailor who was hunting through his pockets. "[Without a needle I cannot '
            'work|My only needle is gone]," he moaned. {Hero} gave him a pine needle for a joke, and the tailor '
            "laughed so much that he gave {hero.him} a [velvet|silk|satin] ribbon."
        ),
        "second": (
            "A horse with its hair in its eyes stood at the [fountain|gate|trough]. {Hero} tied the hair up with the "
            "ribbon, and the grateful horse gave {hero.him} a horseshoe."
        ),
        "last": "horseshoe",
    },
    {
        "first": (
            "On the way {hero.he} met a hungry [giant of a man|soldier|shepherd], and shared {hero.his} {food} with "
            "him. For that the man [gave|carved] {hero.him} a walking stick."
        ),
        "second": (
            "[At the crossroads|By the church|Near the mill] an old woman was limping. {Hero} let her have the stick, "
            "and she gave {hero.him} a jar of [golden|dark|sweet] honey."
        ),
        "last": "jar of honey",
    },
    {
        "first": (
            "All that {hero.he} had was a pocket full of [walnuts|acorns|shells]. {Hero.he} gave them to a child who "
            "[was crying|had lost a tooth|was bored], and the child gave {hero.him} a paper windmill."
        ),
        "second": (
            "A farmer's scarecrow did not scare [anyone|a single crow]. {Hero} put the windmill into its hat, the "
            "crows flew off, and the farmer gave {hero.him} a [round|big|yellow] cheese."
        ),
        "last": "cheese",
    },
    {
        "first": (
            "All that {hero.he} had was a ball of string. {Hero.he} used it to tie up a bookseller's [broken bag|torn "
            "sack], and the bookseller gave {hero.him} a book of songs."
        ),
        "second": (
            "[On the bridge|By the river|Under the {tree}] sat a singer who had forgotten all his songs. {Hero} gave "
            "him the book, and he gave {hero.him} a silver button from his [coat|sleeve]."
        ),
        "last": "silver button",
    },
)

LAST_SWAP = (
    {
        "deal": (
            'The shopkeeper looked at it [closely|from all sides]. "That is exactly what I have been looking for [all '
            'year|since spring]," he said. "Take {thing.the}, and we are even."'
        ),
        "moral": (
            '{Hero} had left home with almost nothing. "It is not magic," {hero.he} told {hero.his} friend {friend}. '
            '"Everybody needs something, and everybody has something."'
        ),
    },
    {
        "deal": (
            "In front of the shop sat {hero.his} friend {friend}, crying. {Friend.his} mother was ill and wanted just "
            'one thing, and it was a {last}. {Hero} did not think long. "Take it," {hero.said}.'
        ),
        "moral": (
            "{Hero} went home without {thing.the}. But the shopkeeper had seen everything through the window, and that "
            'night {thing.the} stood at {hero.his} door with a note: "For a good heart."'
        ),
    },
    {
        "deal": (
            'The shopkeeper [only shook her head|frowned|laughed out loud]. "A {last}? For {thing.that} {thing.full}, '
            'when {thing.it} {thing:cost} ten times as much? [Never|No, no, no]!" {Hero} sighed and gave the {last} '
            "to {hero.his} friend {friend}, who was very pleased."
        ),
        "moral": (
            'The next day {friend} came with a wide smile. "I told my uncle about you," {friend.said}. "He has '
            '{thing.a_plain} that nobody uses. [Come and see|Come with me]!"'
        ),
    },
    {
        "deal": (
            'The shopkeeper thought about it. "Not for a {last} alone," he said, "but if you sweep the shop for [a '
            'week|ten days] as well, {thing.the} will be yours." {Hero} took the broom at once.'
        ),
        "moral": (
            "{Hero} swept and dusted, and sang while {hero.he} worked, and more and more people came into the shop. On "
            'the last day the shopkeeper handed over {thing.the} [with a bow|and shook {hero.his} hand]. "I think that '
            'I made the better trade," he said.'
        ),
    },
)

OUTLINES = (
    (
        (
            "{opening} In the shop window there was {thing.a}, and {hero} wanted {thing.them} more than anything [in "
            'the world|else]. But {hero.he} had no [money|coins]. "Then I will trade," {hero.said}.'
        ),
        "{first}",
        "{second}",
        "At last {hero} came to the shop with the {last}. {deal}",
        "{moral} [{ending}|]",
    ),
    (
        (
            "Can you buy {thing.a_plain} without a single coin? {Hero}, {hero.a_kind}, thought so. {Thing.the} in the "
            "window of the corner shop {thing.was} just what {hero.he} had always wanted."
        ),
        '{Day}, {hero.he} set out. {first} "That was a good trade," {hero.laughed}.',
        "{second} [{Hero} walked on, whistling.|It was getting better and better.]",
        "{deal}",
        "{moral}",
    ),
)

TRADE = Scheme("trade", THINGS, (FIRST_SWAP, LAST_SWAP), OUTLINES)
