"""Lost and found: something dear is missing; how it went decides where it is found."""

from ..lexicon import CLOTHS, COLOURS, METALS, StoryNoun
from ..scheme import Scheme

THINGS = (
    StoryNoun("key", METALS),
    StoryNoun("bell", METALS),
    StoryNoun("whistle", ("tin", "wooden", "silver", "red")),
    StoryNoun("ribbon", COLOURS),
    StoryNoun("button", ("brass", "pearl", "green", "blue")),
    StoryNoun("spoon", ("silver", "wooden", "copper")),
    StoryNoun("thimble", METALS),
    StoryNoun("mitten", CLOTHS),
    StoryNoun("ring", ("golden", "silver", "copper")),
    StoryNoun("marbles", ("blue", "green", "glass", "striped"), "a bag of"),
    StoryNoun("beads", ("amber", "glass", "blue", "red"), "a string of"),
)

WORTH = (
    {
        "worth": (
            "{Elder} had given {thing.them} to {hero.him} [on {hero.his} birthday|before a long winter], and there "
            "[were none like {thing.them}|was nothing like {thing.them} in the whole world]."
        ),
        "ache": '"What will {elder} say?" {hero.sighed}.',
        "after": (
            "The next time {elder} came to visit, {thing.the} {thing.was} lying safe on the table, polished and bright."
        ),
    },
    {
        "worth": (
            "{Hero.he} had found {thing.them} [on the beach|in an old castle|under a stone] long ago, and {thing.it} "
            "always brought good luck."
        ),
        "ache": '"All my luck is gone," {hero.sighed}.',
        "after": (
            '"Perhaps the luck was not in {thing.them} at all," {hero} thought. "Perhaps it was in having a friend."'
        ),
    },
    {
        "worth": "{Hero.he} had promised to lend {thing.them} to {neighbour.full} for the village fair.",
        "ache": '"I made a promise, and now I cannot keep it," {hero.sighed}.',
        "after": (
            "At the fair, {neighbour} thanked {hero.him} in front of everyone. The promise had been kept after all."
        ),
    },
    {
        "worth": (
            "{Hero.he} had saved {hero.his} pennies for [a whole year|almost a year|a very long time] to buy "
            "{thing.them}."
        ),
        "ache": '"[A whole year of pennies!|All those pennies!]" {hero.cried}.',
        "after": "From that day on, {hero} kept {thing.them} on a string around {hero.his} neck.",
    },
    {
        "worth": "{Thing.it} {thing.was} the sign of a secret club, and the club had only [two|three|four] members.",
        "ache": '"Without {thing.them} I am not in the club any more," {hero.sighed}.',
        "after": "The club had a new rule after that: whoever loses something calls the others first.",
    },
)

LOSS = (
    {
        "clue": (
            "Then {friend} looked at {hero.his} pocket. There was a hole in it[ as wide as a thumb| as big as a "
            'walnut|, and it was not a small one]. "{Thing.it} must have fallen out along the way," {friend.said}.'
        ),
        "search": (
            "They [walked|went] back along the path, past the [well|mill|old pump] and the [stile|bridge|signpost], "
            "and looked [under every leaf|behind every stone]."
        ),
        "found": (
            "[Near the gate|Beside a puddle|At the foot of the {tree}], something [shone|lay] in the grass. It was "
            "{thing.the}!"
        ),
        "mend": (
            "That evening {hero} [took|found] a needle and thread and sewed up the hole with [twelve|twenty] tiny "
            "stitches."
        ),
    },
    {
        "clue": (
            "Just then a magpie [flew over the roof|landed on the fence|hopped across the lawn] with something in its "
            'beak. "Magpies love pretty things," {friend.said}. "Let us look in its nest."'
        ),
        "search": "They followed the bird to the tallest {tree} in the wood, and {hero} climbed from branch to branch.",
        "found": "In the nest, between a bottle cap and a bit of foil, lay {thing.the}.",
        "mend": (
            "So that the magpie would not be sad, {hero} left [a shiny piece of glass|a tin star|a bright bottle top] "
            "in the nest."
        ),
    },
    {
        "clue": (
            '"Did you have {thing.them} when you were [washing the sheets|doing the washing]?" {friend.asked}. {Hero} '
            "thought hard. [Yes|Of course], {thing.it} had been in {hero.his} apron."
        ),
        "search": (
            "They ran to the washing line, where the sheets were [blowing like sails|flapping in the wind], and shook "
            "them out one by one."
        ),
        "found": (
            "From the very last sheet, {thing.the} [dropped|fell] into the [clover|grass|nettles] with a soft "
            "[thud|plop]."
        ),
        "mend": "After that, {hero} always looked into {hero.his} pockets before washing day.",
    },
    {
        "clue": (
            'Then they saw small round marks in the mud. "Those are the footprints of a puppy," {friend.said}. "And '
            'puppies carry everything away."'
        ),
        "search": (
            "The tracks led [across the yard|through the cabbages|under the fence], around the [pump|well] and behind "
            "the [woodshed|hen house]."
        ),
        "found": (
            "There sat the [miller's|farmer's|postman's] puppy, [wagging its tail|panting happily], and between its "
            "paws {thing.was} {thing.the}."
        ),
        "mend": (
            "{Hero} gave the puppy [an old shoe|an old slipper|a stick] to chew instead, and the puppy was just as "
            "happy."
        ),
    },
    {
        "clue": (
            '"Where were you when you last had {thing.them}?" {friend.asked}. "By the stream," {hero.said}. "I was '
            'building a dam."'
        ),
        "search": (
            "They [hurried|raced|ran] to the stream[, rolled up their sleeves|, knelt on the bank] and felt among the "
            "[cold|slippery|smooth] stones."
        ),
        "found": (
            '"Here!" {friend.cried}. Under the clear water, [caught between two pebbles|half hidden in the sand], '
            "{thing.was} {thing.the}."
        ),
        "mend": "{Hero} dried {thing.them} carefully, and they finished the dam together.",
    },
)

OUTLINES = (
    (
        "{opening} {Hero.he} owned {thing.a} and loved {thing.them} more than anything. {worth}",
        (
            "{Day}, {thing.the} {thing.was} gone. {Hero} looked [under the bed|behind the stove|in the cupboard] and "
            "[in every drawer|beneath the rug|among the cushions], but {thing.it} {thing.was} not there. {ache}"
        ),
        (
            "{Friend} from [next door|across the lane|down the hill] heard {hero.him} and [came to help|came over at "
            "once]. {clue}"
        ),
        "{search} {found} {Hero} [laughed out loud|jumped for joy|could hardly speak] and [hugged|thanked] {friend}.",
        "{mend} [{after}|{ending}]",
    ),
    (
        '"{Thing.it} {thing.is} gone!" {hero.cried}. "My {thing.full} {thing.is} gone!"',
        "{Opening} {Hero.he} owned {thing.a}. {worth} [Now the place where {thing.it} had always been was empty.|]",
        (
            '{Friend} put down {friend.his} [basket|book|bucket] at once. "Do not cry," {friend.he} said. "[Two pairs '
            'of eyes see more than one|We will look together|Things do not just fly away]." {clue}'
        ),
        (
            "{search} [For a long time they found nothing but [snails|feathers|old nails] and "
            "[acorns|pebbles|twigs].|] {found}"
        ),
        (
            '["Thank you," {hero.whispered}. "I would never have found {thing.them} alone."|{Hero} was so glad that '
            "{hero.he} danced in a circle.] {mend} {after}"
        ),
    ),
    (
        "{Day}, {hero} reached into {hero.his} bag and felt nothing. {Thing.the} {thing.was} missing. {worth} {ache}",
        (
            "{Hero} was {hero.a_kind}, and {hero.he} did not like to ask for help. But the [garden|house|yard] was "
            "[large|big], so at last {hero.he} knocked on {friend}'s door."
        ),
        "{clue} {search}",
        '{found} "[We did it|There you are|I knew it]!" {hero.cried}. {mend} {ending}',
    ),
)

LOST = Scheme("lost and found", THINGS, (WORTH, LOSS), OUTLINES)
