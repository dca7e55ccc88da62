"""A secret: the hero hides something, and somebody feels left out until the truth comes out."""

from ..lexicon import StoryNoun
from ..scheme import Scheme

THINGS = (
    StoryNoun("box", ("wooden", "tin", "round", "locked")),
    StoryNoun("chest", ("old", "oak", "iron", "green")),
    StoryNoun("crate", ("big", "wooden", "empty")),
    StoryNoun("sack", ("grey", "lumpy", "brown")),
    StoryNoun("bucket", ("tin", "blue", "covered")),
    StoryNoun("trunk", ("leather", "black", "old")),
    StoryNoun("cage", ("wicker", "brass", "covered")),
    StoryNoun("hatbox", ("pink", "striped", "round")),
    StoryNoun("drawers", ("deep", "painted", "dusty"), "a set of"),
)

SECRET = (
    {
        "signs": (
            "Every day {hero} carried [a bowl of milk|a saucer of milk and some crumbs] out to the shed, and every day "
            "the bowl came back empty."
        ),
        "truth": "Inside, on a bed of [hay|moss|wool], slept a baby [hedgehog|bat|squirrel] with a bandage on its leg.",
        "why": ('"A loud noise would frighten it to death," {hero} explained. "That is why I could not tell anyone."'),
        "after": (
            "From that day they fed it together. When the leg had healed, they carried it to the edge of the wood and "
            "watched until it was gone."
        ),
    },
    {
        "signs": "Every day {hero} came back with paint on {hero.his} [nose|ears|chin] and would not say why.",
        "truth": (
            "Inside was a picture of {friend}, sitting [by the pond|on the old wall|in the tall grass] with the sun "
            "behind {friend.him}."
        ),
        "why": '"It is for your birthday," {hero} explained. "It was not quite finished, so I could not show you."',
        "after": (
            "{Friend} hung the picture above {friend.his} bed, where {friend.he} could see it [first thing in the "
            "morning|every night before going to sleep]."
        ),
    },
    {
        "signs": (
            "Every day at five {hero} ran home early, and through the window came squeaks and groans, as if somebody "
            "were [chasing a goose|stepping on a cat|sawing a table in half]."
        ),
        "truth": "Inside lay a dented [trumpet|horn|tuba] and a book of tunes.",
        "why": (
            '"I am learning to play," {hero} explained, "but I am so bad at it that I did not want anyone to hear."'
        ),
        "after": (
            "{Friend} fetched {friend.his} drum. Together they were twice as loud and not much better, and they had "
            "never had so much fun."
        ),
    },
    {
        "signs": (
            "Every day {hero} saved [half of {hero.his} lunch|a piece of fish|some cheese] and slipped away to the "
            "shed."
        ),
        "truth": (
            "Inside were [four|five|six] kittens, so young that their eyes had hardly opened, and their thin mother "
            "purred beside them."
        ),
        "why": '"Their mother trusts nobody but me," {hero} explained. "But I think that she will trust you, too."',
        "after": (
            "The kittens grew fat and bold. One of them, the one with [white socks|the crooked tail|the black nose], "
            "went home with {friend} and stayed there."
        ),
    },
    {
        "signs": "Every day {hero} gathered bits of coloured glass and hid them in {hero.his} [sleeves|hat|socks].",
        "truth": (
            "Inside was a lantern made of a hundred bits of glass, and when {hero} lit the candle, [red and blue|green "
            "and golden] stars danced over the walls."
        ),
        "why": (
            '"You said that you were afraid of the dark," {hero} explained. "I wanted to give you a dark that is '
            'beautiful."'
        ),
        "after": (
            "That night {friend} put the lantern beside {friend.his} bed and fell asleep counting the stars on the "
            "ceiling."
        ),
    },
)

HURT = (
    {
        "hurt": (
            '{Friend} thought about it the whole evening. "We have always told each other everything," '
            '{friend.sighed}. "Perhaps {hero} has a new friend."'
        ),
        "moment": (
            "The next day {friend} did not come to play. When {hero} found {friend.him} [crying|sitting alone] under "
            "the {tree}, {hero.he} understood at once."
        ),
    },
    {
        "hurt": (
            "{Friend} asked once, and {friend.he} asked twice, but {hero} only looked away. That hurt more than [a bee "
            "sting|a scraped knee|any bruise]."
        ),
        "moment": (
            '"If you do not trust me," {friend} said at last, "then we are not really friends." {Hero} turned pale.'
        ),
    },
    {
        "hurt": (
            "{Friend} made up {friend.his} mind to find out. {Friend.he} hid behind the [rain barrel|hedge|woodpile] "
            "and waited, and felt very bad about it."
        ),
        "moment": (
            "[But then {friend} sneezed|A twig snapped], and {hero} spun around. For a moment they stared at each "
            "other, and both of them turned [red|pink]."
        ),
    },
    {
        "hurt": (
            "{Friend} pretended not to care. {Friend.he} whistled and kicked a [pebble|pine cone|tin can] down the "
            "road, but the whistling sounded thin."
        ),
        "moment": (
            'That evening {friend} left a [note|letter] under {hero}\'s door. "I miss how it was," it said, and '
            "nothing more. {Hero} ran to {friend}'s house [at once|in the dark|without a coat]."
        ),
    },
)

OUTLINES = (
    (
        "{Hero} had a secret. It was hidden in {thing.a}, and nobody knew about it, not even {friend}. {signs}",
        "{hurt}",
        '{moment} "[Come with me|I will show you]," {hero.said}, and led {friend} to {thing.the}.',
        "{truth} {why}",
        (
            '"And I thought [you did not like me any more|you had a new friend|something terrible had happened]!" '
            "{friend.laughed}. {after}"
        ),
    ),
    (
        (
            "{opening} {Hero.he} told {friend} everything: every dream, every joke and every worry. But that {season}, "
            "something changed. {signs} And there was {thing.a} that nobody was allowed to touch."
        ),
        (
            '"What is [in there|in it]?" {friend.asked}. "[Oh, nothing|Just some old things]," {hero.said}, [much too '
            "quickly|without looking up]. {hurt}"
        ),
        "{moment}",
        "Without a word, {hero} took {friend} to the shed and opened {thing.the}. {truth} {why}",
        "{after} [{ending}|]",
    ),
    (
        (
            "Why did {hero} keep {thing.a} in the shed, and why was nobody allowed to look inside? {Friend} asked "
            "{friend.himself} that question from morning to night. {signs}"
        ),
        "{hurt} {moment}",
        (
            '"I will show you," {hero.whispered}, "but please be [as quiet as a mouse|very quiet]." Slowly, {hero.he} '
            "opened {thing.the}. {truth}"
        ),
        '"[Oh|How wonderful]!" {friend.whispered}. {why} {after}',
        (
            "[A secret is a fine thing, but a secret shared by two is finer.|{Hero} was glad that there was nothing "
            "left to hide.|It is lonely to have a secret, thought {hero}, and it is lovely to share one.]"
        ),
    ),
)

SECRET_KEPT = Scheme("secret", THINGS, (SECRET, HURT), OUTLINES)
