"""Building something: the reason decides the use, and one part refuses to work."""

from ..lexicon import COLOURS, WOODS, StoryNoun
from ..scheme import Scheme

THINGS = (
    StoryNoun("raft", WOODS),
    StoryNoun("bridge", ("wooden", "narrow", "sturdy")),
    StoryNoun("cart", COLOURS),
    StoryNoun("sledge", COLOURS),
    StoryNoun("swing", WOODS),
    StoryNoun("ladder", ("tall", "wooden", "strong")),
    StoryNoun("bench", ("oak", "green", "wooden", "round")),
    StoryNoun("kennel", COLOURS),
    StoryNoun("table", ("round", "oak", "long")),
    StoryNoun("boat", ("little", "blue", "wooden", "flat")),
    StoryNoun("stilts", ("tall", "red", "wooden"), "a pair of"),
    StoryNoun("shelves", ("pine", "white", "wooden"), "a set of"),
)

REASON = (
    {
        "reason": (
            "{Elder} would be seventy on Sunday, and {hero} wanted to make a present with {hero.his} own [two "
            "|]{hero.paws}"
        ),
        "payoff": (
            'On Sunday, {elder} walked all around {thing.the} and [touched every board|could not stop smiling]. "This '
            'is the [best|finest|loveliest] present of my whole life," {elder.said}.'
        ),
    },
    {
        "reason": (
            "there was going to be a [big|great] market by the lake, and {hero} wanted to bring something that nobody "
            "else had"
        ),
        "payoff": (
            'At the market, a [crowd|long line of people] gathered around {thing.the}. "Did you really make '
            '{thing.this} yourself?" asked a man with a [tall hat|long beard|red nose|bag of apples]. {Hero} nodded '
            "and [blushed|beamed]."
        ),
    },
    {
        "reason": (
            "{friend} had just moved to the valley and missed {friend.his} old home, where there had been "
            "{thing.a_plain} just outside the door"
        ),
        "payoff": (
            'When {friend} saw {thing.the}, {friend.he} forgot to be homesick. "Now it feels like home here, too," '
            "{friend.said}."
        ),
    },
    {
        "reason": (
            "{hero} had read about {thing.a_plain} in an old book with [brown|torn|yellow] pages, and could think of "
            "nothing else"
        ),
        "payoff": (
            "That night {hero} opened the old book once more. On the last page {hero.he} drew a picture of "
            "{thing.the}, so that others could learn how it was done."
        ),
    },
)

TROUBLE = (
    {
        "start": "{Hero.he} [drew a careful plan|measured every board], fetched a saw and began.",
        "trouble": (
            "[By noon there was a problem|After an hour something was wrong|But it did not go well]. Every board was a "
            "little too short, because {hero} had measured with a crooked stick."
        ),
        "advice": '"Measure twice and cut once," {neighbour.said}, and [lent|gave] {hero.him} a proper ruler.',
        "fix": (
            "{Hero} fetched new boards from the [shed|barn|cellar], measured each of them twice, and this time every "
            "piece fitted."
        ),
    },
    {
        "start": (
            "{Hero.he} gathered [planks and rope|old crates and planks] and a jar of nails, and hammered all morning."
        ),
        "trouble": (
            "But when the last nail was in, everything wobbled like [jelly|a loose tooth|a tired donkey], and with a "
            "loud [crack|bang] it fell in a heap."
        ),
        "advice": (
            '{Neighbour} looked at the heap and scratched {neighbour.his} [chin|head|ear]. "A square will always '
            'wobble," {neighbour.he} said, "but a triangle stands firm."'
        ),
        "fix": (
            "So {hero} nailed a slanting board [into|across] each corner to make triangles. {Hero.he} pushed and "
            "pulled, and nothing moved."
        ),
    },
    {
        "start": "{Hero.he} sanded the wood until it was as smooth as [butter|an egg|silk], and opened a pot of paint.",
        "trouble": (
            "Just when the paint was nearly dry, [dark|black|heavy] clouds came over the [hill|roofs|wood], and the "
            "rain washed all of it into the grass."
        ),
        "advice": (
            '"Water cannot hurt what is covered with wax," {neighbour.said}, and brought a [lump|piece|pot] of yellow '
            "beeswax."
        ),
        "fix": (
            "The next day {hero} painted everything again and rubbed it with wax. When the rain came back, the drops "
            "[just|simply] rolled off."
        ),
    },
    {
        "start": "{Hero.he} needed [nine|ten|eleven] long poles, and went into the wood to find them.",
        "trouble": (
            "The poles were there, but they were much too heavy. {Hero} pulled until {hero.his} [{hero.paws} were "
            "sore|back ached|face was red], and the first one had moved no further than a snail."
        ),
        "advice": (
            '"Why carry what can roll?" {neighbour.asked}, and showed {hero.him} how to put round logs underneath.'
        ),
        "fix": (
            "With the logs beneath them, the poles rolled down the path as if by magic, and [the rest was easy|soon "
            "the work was done]."
        ),
    },
    {
        "start": "{Hero.he} tied the pieces together with string and pulled each knot [tight|as tight as possible].",
        "trouble": (
            "The knots looked fine, but as soon as anything leaned on them, they slipped open, one after another."
        ),
        "advice": (
            '{Neighbour} had once been a sailor. "That is a granny knot," {neighbour.he} laughed. "Let me teach you '
            'one that holds."'
        ),
        "fix": (
            "Over, under, around and through: {hero} practised until {hero.he} could tie the sailor's knot with closed "
            "eyes. Now nothing slipped."
        ),
    },
)

OUTLINES = (
    (
        "{opening} In {season}, {hero} decided to build {thing.a}, for {reason}.",
        "{start} {aside} {trouble}",
        (
            "{Hero} [sat down in the sawdust|kicked a stone|felt like giving up]. Just then {neighbour.full} came "
            "along the path. {advice}"
        ),
        "{fix} [At sunset|Two days later|By the end of the week] {thing.the} {thing.was} ready.",
        "{payoff} [{ending}|]",
    ),
    (
        (
            '"What are you making?" asked {neighbour.full}. "{Thing.a}," said {hero} [proudly|with a hammer in one '
            "hand|from behind a pile of wood]."
        ),
        "{Hero} was {hero.a_kind} who {hero.habit}. The idea had come to {hero.him} in the night: {reason}.",
        '{start} {trouble} "[Oh no|Oh dear]!" {hero.cried}. "[All that work for nothing|Now I must begin again]!"',
        "But help was near. {advice} {fix}",
        (
            "At last {thing.the} stood in the yard, and {hero} walked around {thing.them} [twice|three times|on "
            "tiptoe]. {payoff}"
        ),
    ),
    (
        (
            "{Day}, {hero} put on {hero.his} [oldest apron|straw hat|big boots]. {Hero.he} wanted to build {thing.a}, "
            "and this was why: {reason}. {start}"
        ),
        (
            "{trouble} [For a while {hero} just looked at it. Then {hero.he}|{Hero} sighed and] went to ask "
            "{neighbour.full}."
        ),
        "{advice}",
        (
            '{fix} "[Look at that|There]!" {hero.cried}. {Thing.the} {thing.was} finished, and {thing.it} {thing.was} '
            "even better than in the plan."
        ),
        "{payoff} {ending}",
    ),
)

BUILDING = Scheme("building", THINGS, (REASON, TROUBLE), OUTLINES)
