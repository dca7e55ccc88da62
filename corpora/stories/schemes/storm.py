"""A stormy night: fear, somebody who is more afraid, and a small light that is enough for all."""

from ..lexicon import METALS, StoryNoun
from ..scheme import Scheme

THINGS = (
    StoryNoun("lantern", METALS),
    StoryNoun("candle", ("white", "red", "thick")),
    StoryNoun("lamp", ("oil", "brass", "little")),
    StoryNoun("quilt", ("striped", "warm", "huge")),
    StoryNoun("teddy bear", ("brown", "soft", "old")),
    StoryNoun("music box", ("silver", "tiny", "blue")),
    StoryNoun("storybook", ("thick", "green", "old")),
    StoryNoun("kettle", ("copper", "black", "whistling")),
    StoryNoun("mouth organ", ("silver", "little", "old")),
    StoryNoun("cards", ("painted", "old", "funny"), "a pack of"),
    StoryNoun("dominoes", ("ivory", "black", "wooden"), "a box of"),
)

STORM = (
    {
        "storm": (
            "The storm came [without warning|in the night|after supper]. Thunder rolled over the hills like [barrels "
            "down a stair|a giant's drum], and the rain [beat|hammered|drummed] on the roof."
        ),
        "strike": "Lightning flashed, and every [lamp|light] in the village went out.",
        "calm": "Towards morning the thunder grumbled once more, far away, and was gone.",
    },
    {
        "storm": (
            "It had been snowing [since noon|since breakfast|all day]. By evening the snow was as high as the "
            "[windows|fence], and the wind howled in the chimney like a [wolf|dog]."
        ),
        "strike": "With a crack the big {tree} fell across the [lane|path], and nobody could get in or out.",
        "calm": "When they woke, the world was white and silent, and the sun made it glitter.",
    },
    {
        "storm": (
            "The wind had been rising all day. Now it rattled the shutters, tore at the tiles and sang in the keyhole "
            "with a voice like a [witch|whistle|ghost]."
        ),
        "strike": "A shutter flew open, a gust swept through the room, and everything went dark.",
        "calm": "Before dawn the wind lay down like a tired dog, and [one star was|a few stars were] shining.",
    },
    {
        "storm": (
            "All afternoon the clouds had been [as black as soot|growing darker]. Then the sky opened, and the rain "
            "came down in ropes. The stream beside the house [roared|rose] like a hungry beast."
        ),
        "strike": "[Somewhere|Far below] the old bridge broke and was carried away in the dark.",
        "calm": "At sunrise the stream was back in its bed, and [a rainbow stood|two rainbows stood] over the fields.",
    },
)

GUEST = (
    {
        "guest": (
            "[Then there was a knock.|Then somebody knocked.|Three knocks came from the door.] Outside stood {friend}, "
            '[dripping wet|white with cold], with {friend.his} teeth chattering. "Our roof has blown off," {friend.he} '
            'said. "May I come in?"'
        ),
        "after": (
            "The next day all the neighbours came with hammers and nails, and by noon {friend} had a new roof. But "
            "{friend.he} stayed for supper anyway."
        ),
    },
    {
        "guest": (
            "Then something scratched at the door. It was a whole family of rabbits, whose burrow was full of water, "
            "and behind them came a hedgehog, [two|three|four] frogs and a very wet {bird}."
        ),
        "after": (
            "In the morning the guests went home, one after another. On the step they had left a present: a heap of "
            "[the best hazelnuts|wild strawberries|white mushrooms]."
        ),
    },
    {
        "guest": (
            "Then {hero} heard [somebody crying|a sob|a cry]. It was {friend}, all alone in the house across the lane. "
            "{Hero} took a deep breath, ran through the dark and brought {friend.him} over."
        ),
        "after": (
            '"Were you not afraid?" {friend} asked {hero} at breakfast. "I was," {hero.said}. "But then I [had no time '
            'for it|forgot about it]."'
        ),
    },
    {
        "guest": (
            "Then {hero} remembered {elder}, who lived alone at the end of the path. {Hero.he} tied a rope around "
            "{hero.himself}, [ran|stumbled] through the storm and led {elder} back to the house."
        ),
        "after": (
            '"I have seen many storms," {elder.said} in the morning, "but none that was so [cosy|merry]." And from '
            "then on {elder} came over whenever the sky turned dark."
        ),
    },
)

OUTLINES = (
    (
        (
            "{storm} {Hero}, {hero.a_kind}, sat in bed with {hero.his} knees pulled up[| under {hero.his} chin]. "
            "{Hero.he} did not like storms. {strike}"
        ),
        '["It is only weather," {hero} told {hero.himself}, but {hero.his} voice was thin.|] {guest}',
        (
            "[Now there was no time to be afraid.|There was a lot to do now.|] {Hero} fetched [dry towels|thick "
            "socks|dry blankets], warm {soup} and {thing.a}. {comfort}"
        ),
        "{calm} [Everybody had slept, even {hero}.|Nobody had noticed when it stopped.||]",
        "{after} [{goodnight}||]",
    ),
    (
        "{opening} There was only one thing that {hero.he} did not like, and that was a storm. {storm}",
        (
            "{strike} {Hero} [crept under the table|pulled the blanket over {hero.his} ears|held on to the "
            "bedpost]. {guest}"
        ),
        (
            '"[Come in, come in|There is room for everyone|Sit by the stove]," {hero.said}, and found {thing.the}. '
            "{comfort}"
        ),
        "[[Outside, the storm raged on.|] Inside, nobody was listening to [it|the storm] any more.|] {calm}",
        "{after}",
    ),
    (
        (
            '"If you are afraid of storms," {elder} had once said, "find somebody who is more afraid than you are." '
            "{Hero} had not understood it then."
        ),
        "{storm} {strike}",
        "{guest} {Hero} forgot {hero.his} own fear and got out {thing.the}. {comfort}",
        "{calm} {after}",
        "And {hero} thought of what {elder} had said. Now {hero.he} [understood|knew that it was true].",
    ),
)

COMFORT = (
    {
        "comfort": (
            "They all moved close together, {thing.the} in the middle, and told the [funniest|strangest|oldest] "
            "stories they knew. Each time it thundered or howled, they answered with a roar of their own."
        ),
    },
    {
        "comfort": (
            "{Thing.the} {thing.was} nothing special, but in the middle of that night {thing.it} {thing.was} worth "
            "more than a [palace|crown]. [Little by little|Slowly] the shivering stopped."
        ),
    },
    {
        "comfort": (
            "They played and sang, they shared the last {food}, and they gave the storm a silly name: Gertrude. [You "
            "cannot be very afraid of something named Gertrude.|Who could be afraid of something named Gertrude?]"
        ),
    },
    {
        "comfort": (
            '"What is the best thing about a storm?" {hero.asked}. They all had to think. "That you are not outside," '
            "somebody said at last, and they [laughed|giggled] and moved a little closer to {thing.the}."
        ),
    },
)

STORM_NIGHT = Scheme("storm", THINGS, (STORM, GUEST, COMFORT), OUTLINES)
