"""A journey: something must be brought a long way, and two things stand in between."""

from ..lexicon import COLOURS, METALS, StoryNoun
from ..scheme import Scheme

THINGS = (
    StoryNoun("letter", ("long", "secret", "blue", "important")),
    StoryNoun("basket", ("heavy", "round", "willow")),
    StoryNoun("lamp", METALS),
    StoryNoun("clock", ("brass", "wooden", "old", "blue")),
    StoryNoun("blanket", ("warm", "woollen", "striped", "grey")),
    StoryNoun("teapot", COLOURS),
    StoryNoun("fiddle", ("old", "brown", "fine")),
    StoryNoun("map", ("old", "torn", "painted")),
    StoryNoun("shawl", ("soft", "woollen", "brown", "striped")),
    StoryNoun("slippers", ("red", "woollen", "soft", "green"), "a pair of"),
    StoryNoun("candles", ("white", "tall", "yellow"), "a bundle of"),
)

ERRAND = (
    {
        "errand": "{Elder}, who lived on the far side of the mountains, was ill and alone, and had asked for {thing.a}",
        "arrive": (
            '{Elder} sat up in bed and held {thing.the} as if {thing.it} were made of [glass|gold]. "You came all this '
            'way for me?" {elder.asked}.'
        ),
        "reward": "By the next morning {elder} could stand up again, and that was the best thanks of all.",
    },
    {
        "errand": (
            "the lighthouse keeper had left {thing.a} behind at the inn and could not leave the light to fetch "
            "{thing.them}"
        ),
        "arrive": (
            'The lighthouse keeper opened the door [in surprise|with a lamp in his hand]. "My {thing.full}!" he cried. '
            '"I thought I would never see {thing.them} again."'
        ),
        "reward": (
            "He let {hero} light the great lamp that night, and its beam swept far across the [dark|black|restless] "
            "sea."
        ),
    },
    {
        "errand": "{friend} had moved away to the coast and had forgotten to pack {thing.a}",
        "arrive": (
            '{Friend} dropped everything and ran to the gate. "[I have missed you so much|At last, at last|You are '
            'here, you are here]!" {friend.cried}. {Hero} held out {thing.the}, and then they both talked at once.'
        ),
        "reward": (
            "They sat on the [sea wall|warm sand|pier] until dark, and {friend} promised to make the long journey back "
            "in {season}."
        ),
    },
    {
        "errand": (
            "the queen of the mountain village was getting married, and every valley sent a gift; this valley was "
            "sending {thing.a}"
        ),
        "arrive": (
            'The queen came down from her throne. "Others have sent gold," she said, "but nobody else has walked so '
            'far." She put {thing.the} next to her own chair.'
        ),
        "reward": (
            "{Hero} danced at the wedding until [{hero.his} feet were sore|the candles burned low|the sun came up], "
            "and came home in a carriage."
        ),
    },
)

FIRST = (
    {
        "first": (
            "On the first day {hero} came to a river, and the bridge had been [swept away|broken by a storm]. An old "
            'turtle was dozing [in the reeds|on a stone|in the sun]. "Climb on my back," it yawned, and carried '
            "{hero.him} across."
        ),
    },
    {
        "first": (
            "Before long the path split in two, and the signpost [had fallen over|was gone|could not be read]. {Hero} "
            "remembered that moss grows on the shady side of trees. So that way was north, and {hero.he} took the path "
            "on the [right|left]."
        ),
    },
    {
        "first": (
            "At noon a thick fog came down, so that {hero} could not see {hero.his} own {hero.paws}. {Hero.he} stood "
            "still and listened. [Far away|Somewhere] a [cow bell|church bell] was ringing, and {hero} followed the "
            "sound, step by step."
        ),
    },
    {
        "first": (
            '[In the dark wood|On a narrow ledge|At the edge of the moor] three goats blocked the way. "Nobody passes '
            'without a song," said the oldest. {Hero} sang the only song {hero.he} knew, all [five|six|seven] verses, '
            "and the goats [stamped along and stepped aside|nodded and let {hero.him} pass]."
        ),
    },
    {
        "first": (
            "On the first evening {hero} knocked at a [lonely farm|crooked hut], but the door stayed shut. So "
            "{hero.he} slept in the hay, and in the morning {hero.he} milked the cow to say thank you. The farmer's "
            "wife was so pleased that she drew {hero.him} a map."
        ),
    },
)

SECOND = (
    {
        "second": (
            "The next day the road climbed up and up. The wind pushed {hero} back, and once {thing.the} nearly "
            "[rolled|slipped] over the edge. {Hero.he} tied {thing.them} to {hero.his} back with [a rope|a "
            "belt|{hero.his} scarf] and went on."
        ),
    },
    {
        "second": (
            "When night came, {hero} was hungry and had only one [crust of bread|piece of cheese|small sausage]. A "
            "[thin|shaggy|limping] stray dog looked at {hero.him} with sad eyes. {Hero} shared the food. In return "
            "the dog lay down beside {hero.him} and kept {hero.him} warm [all night|until dawn]."
        ),
    },
    {
        "second": (
            "Then it began to pour. {Hero} took off {hero.his} [own |]coat and wrapped it around {thing.the}. "
            "{Hero.he} {hero.was} wet to the [bone|skin], but {thing.the} stayed dry."
        ),
    },
    {
        "second": (
            'Later a [merchant|stranger|rich man] on a [fine|black|white] horse stopped beside {hero.him}. "I will '
            'give you [ten|twelve|twenty] gold coins for {thing.that} {thing.full}," he said. {Hero} looked at the '
            "coins [for a moment |]and shook {hero.his} head. A promise was a promise."
        ),
    },
    {
        "second": (
            "Further on, a wolf was sitting in the road with a thorn in its foot. {Hero} wanted to run. But the wolf "
            "was crying, so {hero.he} went closer, step by step, and pulled out the thorn. The wolf [sniffed|nodded] "
            "and carried {thing.the} for the next [five|seven|nine] miles."
        ),
    },
)

OUTLINES = (
    (
        '{opening} {Day}, {hero} heard some news: {errand}. "I will go," {hero.said}.',
        (
            "[{Hero.he} filled a flask with water and set out before breakfast.|{Hero.he} packed bread, cheese and a "
            "warm scarf, and closed the door behind {hero.him}.] {first}"
        ),
        "{second}",
        "On the third day {hero} arrived, [tired and dusty|with holes in both socks]. {arrive}",
        "{reward} [{ending}||]",
    ),
    (
        "The road was [long|steep|lonely], and {hero} was [small|young]. But {errand}, and somebody had to go.",
        (
            '{first} ["That was the hard part," {hero} thought, but it was not.|{Hero} felt rather pleased and walked '
            "on.||] {second}"
        ),
        (
            '"[How much further can it be|Will this road never end|Am I lost]?" {hero.sighed}. Then the road turned, '
            "and there at last were [chimneys and smoke|the lights of windows|roofs shining in the sun]."
        ),
        "{arrive} {reward}",
    ),
    (
        (
            '"It is [too far|much too dangerous] for you," said [everyone in the village|the neighbours]. {Hero} was '
            "{hero.a_kind}, and {hero.he} only smiled. {Errand}. [Was that not reason enough?|That was reason enough.]"
        ),
        "So {hero} set off, with {thing.the} [under one arm|in a sack|on a little cart]. {aside} {first}",
        "{second}",
        "And then, after one last hill, {hero} was there. {arrive} {reward}",
    ),
)

JOURNEY = Scheme("journey", THINGS, (ERRAND, FIRST, SECOND), OUTLINES)
