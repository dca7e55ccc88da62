"""Growing something: a seed, a long wait, an enemy, and a harvest that is shared."""

from ..lexicon import StoryNoun
from ..scheme import Scheme

THINGS = (
    StoryNoun("pumpkin", ("orange", "enormous", "round")),
    StoryNoun("sunflower", ("golden", "tall", "giant")),
    StoryNoun("melon", ("green", "striped", "sweet")),
    StoryNoun("turnip", ("purple", "giant", "white")),
    StoryNoun("cabbage", ("curly", "red", "huge")),
    StoryNoun("rose bush", ("pink", "yellow", "white")),
    StoryNoun("sweet peas", ("pink", "white", "purple"), "a bed of"),
    StoryNoun("beans", ("speckled", "tall", "green"), "a row of"),
    StoryNoun("strawberries", ("sweet", "wild", "red"), "a bed of"),
    StoryNoun("tulips", ("red", "yellow", "striped"), "a bed of"),
    StoryNoun("carrots", ("orange", "sweet", "long"), "a row of"),
)

DREAM = (
    {
        "dream": (
            "The garden behind the house was [bare and grey|full of stones|empty], and {hero} wanted one beautiful "
            "thing in it"
        ),
        "harvest": (
            '[People|Strangers] stopped at the [fence|gate] to look. {Neighbour.full} looked the longest. "It used to '
            'be the saddest garden in the street," {neighbour.said}, "and now it is the happiest."'
        ),
    },
    {
        "dream": (
            "{Elder} could not walk down to the fields any more, and {hero} wanted to bring a piece of them up to the "
            "house"
        ),
        "harvest": (
            '{Hero} opened the window wide. {Elder} looked out for a long time. "The fields have come to me," '
            "{elder.whispered}."
        ),
    },
    {
        "dream": (
            "Everybody said that nothing would ever grow in that [stony|dark|dry] corner, and {hero} did not believe it"
        ),
        "harvest": (
            '"Well, well," said everybody, and looked at their [boots|shoes]. {Hero} did not say a word. {Hero.he} '
            "only grinned from ear to ear."
        ),
    },
    {
        "dream": (
            "{Friend} had given {hero} a packet of seeds before moving away, and {hero} wanted to keep it for the "
            "right day. Now the right day had come"
        ),
        "harvest": (
            "{Hero} sent {friend} a long letter about it, with a drawing. Two weeks later {friend} stood at the garden "
            'gate. "I had to see {thing.them} with my own eyes," {friend.said}.'
        ),
    },
)

ENEMY = (
    {
        "enemy": (
            "Then no rain fell for [five|six|seven] weeks. The earth cracked, and the leaves hung down like [wet "
            "socks|tired ears|old rags]."
        ),
        "answer": (
            "Every evening {hero} walked to the river with two [buckets|cans|jugs], [ten|eight|twenty] times there and "
            "[just as often|as many times] back. {Hero.his} arms ached, but the leaves stood up again."
        ),
    },
    {
        "enemy": (
            "[Then the snails came.|One night the snails came.] They came in the dark, [a whole army of them|more than "
            "anyone could count], and they were hungry."
        ),
        "answer": (
            "{Hero} did not want to hurt them. {Hero.he} collected them in a pot by lamplight, carried them across the "
            "road and planted some [lettuce|cabbage] there just for them."
        ),
    },
    {
        "enemy": (
            "Then a [goat|cow|pony] broke through the fence and ate every leaf that it could find. Only one short stem "
            "was left."
        ),
        "answer": (
            '"Where there is a root, there is hope," said {elder}. {Hero} mended the fence and waited. After '
            "[nine|ten|eleven] days there was a new leaf, as small as a fingernail."
        ),
    },
    {
        "enemy": (
            "Then there was a storm with hail as big as [peas|cherries|marbles]. Everything green was beaten flat."
        ),
        "answer": (
            "{Hero} tied every stem to a stick with [soft wool|red thread|ribbon] and talked to each of them in a low "
            "voice. Slowly, very slowly, they straightened their backs."
        ),
    },
    {
        "enemy": "Then weeds came up, and they grew twice as fast as anything else.",
        "answer": (
            "{Hero} pulled them out in the morning, and in the evening they were back. So {hero.he} pulled them out "
            "again. It went on like that for [a month|three weeks|most of the summer], and {hero} won."
        ),
    },
    {
        "enemy": (
            "Then the crows came. They sat on the fence in a long black row and [looked down hungrily|waited for a "
            "good moment]."
        ),
        "answer": (
            "{Hero} made a scarecrow out of a [broom|mop] and an old coat. The crows laughed at it. So {hero.he} put "
            'on the coat {hero.himself}, stood still for an hour, and then shouted "Boo!" They never came back.'
        ),
    },
)

OUTLINES = (
    (
        (
            "{opening} {dream}. So in early spring {hero.he} [dug a hole|raked the soil], put in [a few "
            "seeds|something small and brown] and poured water on top. {aside}"
        ),
        (
            'Nothing happened. {Hero} looked every [day|hour|morning]. "[Does it always take so long|When will it come '
            'up|Is it asleep]?" {hero.he} asked {elder}. "[Be patient|Wait a little]," {elder.answered}. "Plants '
            'cannot read the [clock|calendar]."'
        ),
        "At last there was a [green|tiny green|pale green] tip. {enemy} {Hero} was close to tears. {answer}",
        (
            "By the end of summer there was {thing.a} in the garden, and {thing.it} {thing.was} worth [every day of "
            "waiting|all the trouble]."
        ),
        "{harvest} [{goodnight}|]",
    ),
    (
        "{dream}. It began with a rusty spade and a seed [that was no bigger than a crumb|in a twist of paper].",
        (
            "{Hero}, {hero.a_kind}, watered and waited. First there was [nothing|only earth], then there was a sprout, "
            "and then there were [two|four] round leaves. {enemy}"
        ),
        (
            '"I give up," {hero} said in the evening. But in the morning {hero.he} {hero.was} out in the garden again. '
            "{answer}"
        ),
        "And one day {thing.a} shone in the sun. {Hero} ran to tell [everyone|the whole street].",
        "{harvest}",
    ),
    (
        (
            "When {hero} wanted something, {hero.he} wanted it at once. But you cannot hurry a garden, as {hero} found "
            "out. {dream}."
        ),
        (
            "In March {hero} sowed the seeds. In May there were leaves, and {hero} measured them with a [ruler|string] "
            "every morning. {enemy}"
        ),
        "{answer}",
        (
            "In August, {thing.the} {thing.was} ready at last. {Thing.it} {thing.was} so fine that {hero} walked "
            "around {thing.them} on tiptoe. {harvest}"
        ),
        (
            '{Hero} kept [one seed|a few seeds] in an envelope. On it {hero.he} wrote: "[For next year|Please wait '
            'until spring|Do not hurry]."'
        ),
    ),
)

GARDEN = Scheme("garden", THINGS, (DREAM, ENEMY), OUTLINES)
