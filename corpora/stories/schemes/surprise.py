"""A surprise party: everyone is in on it, something threatens to give it away, and the day comes."""

from ..lexicon import CLOTHS, COLOURS, METALS, StoryNoun
from ..scheme import Scheme

THINGS = (
    StoryNoun("scarf", CLOTHS),
    StoryNoun("rocking chair", ("oak", "red", "new")),
    StoryNoun("umbrella", COLOURS),
    StoryNoun("teapot", COLOURS),
    StoryNoun("pipe", ("clay", "long", "wooden")),
    StoryNoun("shawl", CLOTHS),
    StoryNoun("walking stick", ("ash", "carved", "silver")),
    StoryNoun("music box", METALS),
    StoryNoun("cushion", CLOTHS),
    StoryNoun("slippers", CLOTHS, "a pair of"),
    StoryNoun("spectacles", ("golden", "round", "new"), "a pair of"),
    StoryNoun("gloves", CLOTHS, "a pair of"),
)

PLAN = (
    {
        "plan": "{elder} had never had a birthday party, not even one",
        "shout": "Happy birthday",
        "words": (
            '"Seventy years I have waited for this," {elder} said, and wiped {elder.his} eyes, "and it was worth every '
            'one of them."'
        ),
    },
    {
        "plan": "{elder} was coming home after a whole year at sea",
        "shout": "Welcome home",
        "words": (
            '"I have seen [palm trees|icebergs|parrots] and [whales|volcanoes|palaces]," {elder} said, "but nothing as '
            '[beautiful|fine] as this kitchen."'
        ),
    },
    {
        "plan": "{elder} had been teaching at the little school for forty years, and tomorrow was the last day",
        "shout": "Thank you",
        "words": '"I taught you how to read and write," {elder} said, "but who taught you how to be so kind?"',
    },
    {
        "plan": "{elder} had been ill all through the winter and was well at last",
        "shout": "Hooray",
        "words": (
            '"If I was not well before, I am now," {elder} said, and [danced a little step|jumped over a stool] to '
            "prove it."
        ),
    },
    {
        "plan": "{elder} was moving into the little house at the end of the lane, and knew nobody there yet",
        "shout": "Welcome",
        "words": (
            '"I was afraid that I would be lonely here," {elder} said, and looked from one face to the next. "Now I am '
            'only afraid that I do not have enough chairs."'
        ),
    },
)

DANGER = (
    {
        "danger": "Everything was nearly ready when {elder} came up the path, an hour too early!",
        "escape": (
            "{Friend} thought fast. {Friend.he} ran outside and asked {elder} to help look for a lost [hen|hen named "
            "Flora]. [There was, of course, no "
            "hen.|Of course there was no hen.|The hen did not exist.]"
        ),
        "joke": (
            '"And what about the hen?" {elder.asked} suddenly. Everyone laughed [until their sides hurt|for a long '
            "time]."
        ),
    },
    {
        "danger": (
            "Then a wonderful smell of {food} drifted [across the street|over the hedge], straight to the nose of "
            '{elder}. "Is somebody baking?" {elder.he} called through the window.'
        ),
        "escape": '"It is only soap!" {friend.cried}, and slammed the window shut. "We are doing the washing!"',
        "joke": '"This is very good soap," {elder} said with a mouth full of {food}, and {friend} giggled.',
    },
    {
        "danger": (
            "In the afternoon a terrible thing happened. The [goat|dog] got into the kitchen and ate the {food}, down "
            "to the last crumb."
        ),
        "escape": (
            "There was no flour left, and no time. So {hero} and {friend} stacked up [thirty|forty|fifty] pancakes, "
            "one on top of the other, and stuck a candle in the highest."
        ),
        "joke": '"A pancake tower!" {elder.cried}. "How did you know that I never liked {food}?"',
    },
    {
        "danger": (
            'But {friend} could not keep a secret. "See you at the pa-" {friend.he} began, when {elder} walked past. '
            '"At the pa?" {elder.he} asked.'
        ),
        "escape": '"At the pasture!" {hero} said quickly. "We are going to the pasture, to look at the cows."',
        "joke": '"So this is the famous pasture," {elder.laughed}. "But where are the cows?"',
    },
    {
        "danger": (
            "At noon {hero} found out that the invitations had never been sent. They were still in {friend.his} "
            "[coat|school bag|basket], all [twenty|thirty] of them."
        ),
        "escape": (
            "There was only one way. {Hero} ran up the street, {friend} ran down the street, and they [knocked "
            "at|called through] every single door."
        ),
        "joke": (
            '"Why is everyone out of breath?" {elder.asked}. "Why is half the village in slippers?" Nobody could '
            "answer for laughing."
        ),
    },
)

OUTLINES = (
    (
        (
            "{Hero} had an idea, and it was [such a good one that {hero.he} could not sleep|the best one of the whole "
            'year]. {Plan}. "Let us have a party," {hero.he} said to {hero.his} friend {friend}, "and let us keep it a '
            'secret."'
        ),
        (
            "[They [worked|were busy] the whole [morning|day].|] {Friend} hung paper [stars|chains|lanterns|birds] "
            "from the ceiling, and {hero} baked a {food}. For a present they had {thing.a}, wrapped in "
            "[blue|yellow|silver] paper."
        ),
        "{danger} {escape}",
        (
            '[In the evening|At seven o\'clock|At last] the door [opened|creaked open]. "{shout}!" [everyone|the '
            "whole room] shouted. {Elder} [stood there with an open mouth|dropped a bag of onions|could not say a "
            "word]. [Then {elder.he} unwrapped {thing.the}.|Then {thing.the} {thing.was} unwrapped, and [for a moment "
            "nobody spoke|the room was quite still].]"
        ),
        "{words}",
        (
            "[Then everyone sat down to eat.|Later they all sat around the table.|Then it was time for supper.] {joke} "
            "[{ending}|||]"
        ),
    ),
    (
        '"Not a word to {elder}," {hero.whispered}. "Not a word," {friend.whispered}.',
        (
            "{Opening} Now {hero.he} {hero.was} planning a surprise, because {plan}. There would be songs, a {food} "
            "and {thing.a} with a bow."
        ),
        '{danger} {escape} ["That was close," {hero.sighed}.||]',
        (
            "At six o'clock they blew out the lamps and hid [behind the sofa|under the table|behind the curtains]. "
            '[Steps came nearer, and the door creaked.|The door handle moved.|Somebody was coming.] "{shout}!"'
        ),
        (
            "[{Elder} laughed and cried at the same time, and held {thing.the} close.|Then {elder} unwrapped "
            "{thing.the} and swallowed hard.] {words}"
        ),
        "[Then everyone sat down to eat.|Later they all sat around the table.|Then it was time for supper.] {joke}",
    ),
    (
        (
            "{opening} That week {hero.he} {hero.was} busy from morning to night, and when {elder} asked why, "
            "{hero.he} only smiled. The reason was this: {plan}."
        ),
        (
            "{Hero.his} friend {friend} knew about it, too. Together they had saved up for {thing.a}. They picked "
            "{flowers} for the table, and {friend} baked a {food}."
        ),
        "{danger} {escape}",
        (
            "When {elder} finally came in, the [room|house] was dark. Then the candles were lit, one by one, and "
            'behind every candle was a friend. "{shout}!" they cried.'
        ),
        "Last of all, {hero} brought in {thing.the}. {words}",
        (
            "[Then everyone sat down to eat.|Later they all sat around the table.|Then it was time for supper.] {joke} "
            "{ending}"
        ),
    ),
)

SURPRISE = Scheme("surprise", THINGS, (PLAN, DANGER), OUTLINES)
