"""A contest: why the hero wants to win, what goes wrong, and what is worth more than a prize."""

from ..lexicon import COLOURS, StoryNoun
from ..scheme import Scheme

THINGS = (
    StoryNoun("kite", COLOURS),
    StoryNoun("birdhouse", COLOURS),
    StoryNoun("quilt", ("striped", "blue", "warm")),
    StoryNoun("scarecrow", ("funny", "tall", "straw")),
    StoryNoun("hat", ("tall", "green", "feathered", "purple")),
    StoryNoun("paper dragon", COLOURS),
    StoryNoun("rag doll", ("striped", "tiny", "cheerful")),
    StoryNoun("vase", ("blue", "round", "clay")),
    StoryNoun("lantern", ("paper", "red", "green", "round")),
    StoryNoun("basket", ("willow", "round", "striped")),
    StoryNoun("puppet", ("wooden", "funny", "woollen")),
    StoryNoun("snow globe", ("glass", "tiny")),
)

PRIZE = (
    {
        "prize": (
            "The first prize was a ride in a hot air balloon, and {hero} had dreamed of flying since {hero.he} "
            "{hero.was} tiny"
        ),
        "result": (
            'The prize went to {friend}. But a balloon basket has room for two. "Come with me," {friend.said}, and the '
            "next day they floated over the valley together, [higher than the larks|above the tallest trees|with their "
            "hats in their hands]."
        ),
    },
    {
        "prize": "The first prize was a sack of flour, and at home the flour jar was empty",
        "result": (
            "The judges [talked|argued] for [a long time|an hour]. In the end they gave half the sack to {hero} and "
            "half to {friend}, and that week there was fresh bread [in both houses|on both tables]."
        ),
    },
    {
        "prize": "The prize was a golden cup, and {hero} had already made room for it on the shelf",
        "result": (
            "{Hero} did not win the cup. But the judges gave {hero.him} a ribbon for the kindest deed of the day, and "
            "{hero} put it on the shelf, [right in the middle|next to the clock|where everyone could see it]."
        ),
    },
    {
        "prize": (
            "The winner would light the great bonfire, and {hero} had wanted to do that for as long as {hero.he} could "
            "remember"
        ),
        "result": (
            "[Both of them won.|There were two winners that year.|In the end there was not one winner, but two.] So "
            "{hero} and {friend} held the torch together, and the bonfire [flared up|roared up|blazed] into the night."
        ),
    },
    {
        "prize": (
            "The winner's name would be carved into the [stone|wall|big bell] by the market, and {hero} had already "
            "chosen the place for it"
        ),
        "result": (
            '"We cannot decide," the judges said at last. So two names were carved side by side that '
            "[evening|afternoon]: {hero} and {friend}. They are still there today."
        ),
    },
)

MISHAP = (
    {
        "work": "{Hero} worked on {hero.his} {thing.full} for [six|seven|eight] days and hardly slept.",
        "mishap": (
            "an hour before the contest, {friend} came running [with tears in {friend.his} eyes|with a white face|out "
            "of breath]. {Friend.his} own entry had slipped from the cart and come apart."
        ),
        "help": (
            "{Hero} had planned to rest. Instead {hero.he} [rolled up {hero.his} sleeves|fetched {hero.his} tools], "
            "and the two of them worked side by side until {friend.his} entry was whole again."
        ),
    },
    {
        "work": (
            "{Hero} practised and planned, and threw away [four|five|six] tries before the right {thing} was ready."
        ),
        "mishap": (
            "on the way to the village, {hero} heard somebody call for help. It was {friend}, who had [twisted|hurt] "
            "{friend.his} ankle and was sitting [in the ditch|on a stone|by the road] beside {friend.his} own entry."
        ),
        "help": (
            "[If {hero} stopped now, there would be no good place left at the table.|Stopping meant being late.] But "
            "{hero} stopped. {Friend} leaned on {hero.his} shoulder, and slowly they walked the rest of the way "
            "together."
        ),
    },
    {
        "work": (
            "{Elder} showed {hero} an old trick, and little by little {hero.his} {thing.full} became the finest in the "
            "[street|village]."
        ),
        "mishap": (
            "just before the judging began, the wind tore the roof off the tent and blew {friend.his} entry straight "
            "into the duck pond."
        ),
        "help": (
            "[Everyone laughed, but not {hero}. {Hero.he}|The others only stared, but {hero}|Nobody moved except "
            "{hero}, who] waded into the pond up to {hero.his} waist, among the [angry|noisy|surprised] ducks, and "
            "brought everything back, wet but whole."
        ),
    },
    {
        "work": (
            "{Hero} kept {hero.his} {thing.full} hidden under a [sheet|blanket|tablecloth], and only took it out when "
            "nobody was near."
        ),
        "mishap": (
            "on the morning of the contest, {friend} was sitting on the steps of the [town hall|church] with a pale "
            "face. Somebody had spilled [ink|gravy|paint] all over {friend.his} entry."
        ),
        "help": (
            "{Hero} could have walked past. But {hero.he} [fetched|carried over] a bucket of hot water, soap and a "
            "brush, and together they scrubbed until not one spot was left."
        ),
    },
)

OUTLINES = (
    (
        "{opening} Every {season} there was a contest in the village to see who could make the best {thing}. {prize}.",
        (
            "{work} {Friend}, who lived across the street, wanted to win as well, and so the two of them [hardly "
            "spoke|kept out of each other's way]."
        ),
        "Then, {mishap}",
        (
            '{help} "[Why are you so kind to me|Why did you help me|Do you not want to win]?" {friend.asked}. '
            '"[Because it would not be a fair contest without you|I want to win against your best|Winning alone is no '
            'fun]," {hero.answered}.'
        ),
        "{result} [{ending}|]",
    ),
    (
        (
            '"This year I am going to win," {hero.said}. {prize}. All {hero.he} needed was the best {thing} in the '
            "whole village."
        ),
        "{work} It was {thing.a}, and there was nothing like it [anywhere|for miles around|in any shop].",
        "The great day came. {aside} But {mishap} {help}",
        (
            "Soon the judges walked along the tables [with serious faces|with their hands behind their backs]. [They "
            "looked, they whispered, and they wrote things down.|] {result}"
        ),
        '["Next year I will beat you," {friend.laughed}. "Next year we will see," {hero.answered}.|{ending}]',
    ),
    (
        (
            'A notice hung on the old {tree} in the square: "Who makes the best {thing}? Come on Saturday!" {Hero}, '
            "{hero.a_kind}, read it three times. {prize}."
        ),
        (
            "{work} On Saturday morning {hero.he} set off with {thing.a} and a heart that was beating [like a "
            "drum|very fast]."
        ),
        "But {mishap} {help}",
        "{result}",
        (
            '"I wanted a prize," {hero} said to {elder} that evening, "and I found a friend." {Elder} nodded. "That '
            'was the better catch," {elder.he} said.'
        ),
    ),
)

CONTEST = Scheme("contest", THINGS, (PRIZE, MISHAP), OUTLINES)
