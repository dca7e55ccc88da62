"""A newcomer: somebody new says nothing, the obvious welcome fails, and a shared thing opens the door."""

from ..lexicon import COLOURS, StoryNoun
from ..scheme import Scheme

THINGS = (
    StoryNoun("kite", COLOURS),
    StoryNoun("ball", COLOURS),
    StoryNoun("chessboard", ("wooden", "old", "folding")),
    StoryNoun("puzzle", ("wooden", "difficult", "big")),
    StoryNoun("paper boat", COLOURS),
    StoryNoun("skipping rope", ("red", "long", "yellow")),
    StoryNoun("spinning top", COLOURS),
    StoryNoun("picture book", ("thick", "colourful", "old")),
    StoryNoun("drum", ("round", "red", "big")),
    StoryNoun("crayons", ("bright", "new", "broken"), "a box of"),
    StoryNoun("toy soldiers", ("tin", "painted", "wooden"), "a box of"),
)

STRANGER = (
    {
        "stranger": "{Friend} had come from a country far away and did not know a single word of the language",
        "attempt": (
            "{Hero} talked and talked, [louder and louder|faster and faster], but {friend} only looked at {friend.his} "
            "[shoes|feet]."
        ),
        "bridge": (
            "[No words were needed.|That was easy to understand.] {Friend} pointed, {hero} nodded, and soon they were "
            "laughing in the same language."
        ),
        "later": (
            "[Every day after that they traded one word for another.|From then on they traded words like marbles.] The "
            'first one that {hero} learned meant "friend".'
        ),
    },
    {
        "stranger": "{Friend} had moved into the empty house on the corner and never came out to play",
        "attempt": (
            '{Hero} knocked at the door and ran through a list of nineteen games. "No, thank you," a small voice said, '
            "and the door stayed shut."
        ),
        "bridge": (
            "[After a while|At last] the door opened, just a crack. Then there was a nose, and then there was all of "
            '{friend}. "I can do that, too," {friend.he} said.'
        ),
        "later": "It turned out that {friend} knew a twentieth game, and it was the best of all.",
    },
    {
        "stranger": "{Friend} was new at school, sat in the last row and frowned at [everyone|the wall|the desk]",
        "attempt": (
            '{Hero} offered {friend.him} half of a {food}, but {friend} pushed it away. "I do not need anybody," '
            "{friend.he} said."
        ),
        "bridge": (
            '{Friend} watched from the corner of {friend.his} eye. "You are doing it wrong," {friend.he} said at last, '
            "and came over to show how it was done."
        ),
        "later": (
            '"I was not angry," {friend} explained on the way home. "I was only afraid that nobody would like me."'
        ),
    },
    {
        "stranger": (
            "{Friend} had arrived in the night with a wagon full of [furniture|boxes|plants], and the others said that "
            "{friend.he} was strange"
        ),
        "attempt": (
            "{Hero} waved across the fence, but {friend} did not wave back. It was only later that {hero} understood: "
            "without spectacles, {friend} could not see that far."
        ),
        "bridge": (
            'When {friend} came close enough to see, {friend.his} whole face lit up. "Is that really for me, too?" '
            "{friend.he} asked."
        ),
        "later": "Soon nobody thought that {friend} was strange, or else they all were, and that was fine as well.",
    },
    {
        "stranger": "{Friend} had grown up on a [ship|river boat] and had never lived in a place that stood still",
        "attempt": (
            "{Hero} wanted to show {friend.him} the [school|mill|market], the pond and the best trees for climbing. "
            "But {friend} only looked at the [horizon|sky] and said nothing."
        ),
        "bridge": (
            '"We had one like that on board," {friend} said suddenly. [It was the first thing that {friend.he} had '
            "said all week.|{Friend.his} eyes were shining.]"
        ),
        "later": (
            "{Friend} taught {hero} eleven knots and the names of the winds. {Hero} taught {friend} how to [climb a "
            "tree|milk a goat|ride a bicycle]. It was a fair exchange."
        ),
    },
)

ADVICE = (
    {
        "advice": (
            '"Perhaps you are trying too hard," {elder.said}. "When you want to make friends with a cat, you do not '
            '[run after|shout at] it. You sit down and wait."'
        ),
        "try_again": (
            "So {hero} stopped trying. {Hero.he} just sat down nearby with {thing.a} and left a place free "
            "[beside|next to] {hero.him}."
        ),
    },
    {
        "advice": (
            '"What do you do when you [feel alone|are sad]?" {elder.asked}. {Hero} did not have to think for long.'
        ),
        "try_again": (
            "The next day {hero.he} brought {thing.a} and began to play where {friend} could see it. That had always "
            "cheered {hero.him} up."
        ),
    },
    {
        "advice": "{Hero} remembered {hero.his} own first day, long ago, when nobody had asked {hero.him} to join in.",
        "try_again": (
            '{Hero.he} went to get {thing.the}. "I need somebody to help me with {thing.this}," {hero.he} said to '
            'nobody in particular. "[I cannot do it alone.|It takes two.]"'
        ),
    },
    {
        "advice": (
            '"Do you know what I wanted when I was new here?" {elder.asked}. "I did not want a speech. I wanted '
            'something to do."'
        ),
        "try_again": (
            "{Hero} thought about that all night. In the morning {hero.he} [put|laid] {thing.the} down halfway between "
            "the two of them, said nothing and began."
        ),
    },
)

OUTLINES = (
    (
        "{opening} That {season} there was a new face in the neighbourhood. {stranger}.",
        "{attempt} [{Hero} was disappointed and went home.|{Hero} went home with a long face.|]",
        "{advice}",
        "{try_again} {bridge}",
        "{later} [{ending}|]",
    ),
    (
        (
            'Nobody knew much about {friend}. {stranger}. "Leave {friend.him} alone," some said. But {hero}, '
            "{hero.a_kind}, could not do that."
        ),
        "{attempt} {advice}",
        "{try_again}",
        "[For a long time|For a while] nothing happened. {aside} {bridge}",
        "{later} {ending}",
    ),
    (
        (
            '"Nobody can make friends with {friend}," the others said. {stranger}. But {hero} was {hero.a_kind} and '
            "made up {hero.his} mind to try."
        ),
        "[It was harder than it looked.|It did not begin well.|] {attempt}",
        '"Maybe it is no use," {hero.sighed}. {advice} {try_again}',
        "{bridge} They [stayed|played] until the [lamps were lit|stars came out].",
        (
            '"Will you [come again|be here] tomorrow?" {hero.asked}. "[Tomorrow, and the day after tomorrow|Of course '
            'I will|Only if you will]," {friend.answered}. {later}'
        ),
    ),
)

NEWCOMER = Scheme("newcomer", THINGS, (STRANGER, ADVICE), OUTLINES)
