"""A rescue: a small creature is stuck, the first try fails, and the thing at hand turns out to be the answer."""

from ..lexicon import CLOTHS, COLOURS, StoryNoun
from ..scheme import Scheme

THINGS = (
    StoryNoun("rope", ("long", "strong", "old")),
    StoryNoun("scarf", CLOTHS),
    StoryNoun("net", ("green", "old", "wide")),
    StoryNoun("umbrella", COLOURS),
    StoryNoun("blanket", CLOTHS),
    StoryNoun("basket", ("round", "willow", "deep")),
    StoryNoun("rake", ("long", "rusty", "wooden")),
    StoryNoun("broom", ("long", "old", "sturdy")),
    StoryNoun("curtains", CLOTHS, "a pair of"),
    StoryNoun("reins", ("leather", "long", "old"), "a pair of"),
)

DANGER = (
    {
        "cry": "a thin, high peep",
        "victim": "duckling",
        "where": (
            "A duckling had fallen into the old well. It was [paddling|swimming] round and round, far below, and its "
            "mother was quacking at the edge."
        ),
        "reach": "{Hero} let {thing.the} down into the well, inch by inch, until the duckling could climb on.",
        "home": (
            "The mother duck counted her children. [One, two, three, four, five!|All five were there.] Then she led "
            "them away to the pond in a [neat|straight] row."
        ),
    },
    {
        "cry": "a frightened mew",
        "victim": "kitten",
        "where": (
            "At the very top of the {tree} sat a kitten. It had climbed up [without thinking|after a butterfly|to "
            "chase a leaf], and now it did not dare to climb down."
        ),
        "reach": (
            "{Hero} climbed as high as {hero.he} dared and held out {thing.the}. The kitten sniffed, put out one paw, "
            "and then it held on with all [its|eighteen] claws."
        ),
        "home": (
            "Down on the ground the kitten licked itself all over, as if nothing had happened, and followed {hero} all "
            "the way home."
        ),
    },
    {
        "cry": "a weak bleating",
        "victim": "lamb",
        "where": (
            "A lamb had slid down the [steep|slippery] bank and was stuck in the mud up to its belly. The more it "
            "[kicked|struggled], the deeper it sank."
        ),
        "reach": (
            "{Hero} lay flat on the bank, pushed {thing.the} under the lamb and pulled. The mud gave a [long, "
            "rude|loud] slurp and let go."
        ),
        "home": (
            "The shepherd came over the hill [with a worried face|out of breath], and when he saw the lamb, he [threw "
            "his hat in the air|laughed out loud]."
        ),
    },
    {
        "cry": "a sad little whine",
        "victim": "puppy",
        "where": (
            "In the middle of the stream a puppy sat [shivering|trembling] on a [rock|log]. The water had risen in the "
            "night, and it was still rising."
        ),
        "reach": (
            "{Hero} waded in as far as {hero.he} could and reached out with {thing.the}. The puppy bit into the end "
            "and held on, and {hero} pulled it through the water to the shore."
        ),
        "home": (
            "The puppy shook itself, so that everyone was wet as well. It belonged to the ferryman, and he had been "
            "[calling|looking] for it since [dawn|breakfast]."
        ),
    },
    {
        "cry": "the flutter of wings",
        "victim": "{bird}",
        "where": (
            "A young {bird} had flown into the old barn and could not get out. It beat its wings against the dusty "
            "window, high under the roof."
        ),
        "reach": (
            "{Hero} climbed on the [hay bales|old cart|ladder] and very slowly held {thing.the} up to the window "
            "ledge. The {bird} looked with one black eye, hopped on, and stayed quite still."
        ),
        "home": (
            "Outside, the {bird} sat for one more breath. Then it rose over the roofs, and from the top of the {tree} "
            "it sang the [longest|loveliest|loudest] song of the year."
        ),
    },
)

FIRST_TRY = (
    {
        "first_try": (
            '"I will [get somebody|fetch help]!" {friend.cried}, and ran. But the village was [far away|a mile away], '
            "and there was no time to wait."
        ),
    },
    {
        "first_try": (
            "{Friend} reached down as far as {friend.he} could, and {hero} held {friend.him} by the feet. [It was not "
            "enough.|] They were [an arm|a foot] too short."
        ),
    },
    {
        "first_try": (
            "{Friend} tried to coax it with [bread|oats|a biscuit] and [soft|kind] words. But the poor thing was too "
            "[frightened to listen|afraid to move]."
        ),
    },
    {
        "first_try": (
            "{Friend} found a [long stick|branch|plank] and held it out. It broke in the middle with a loud snap."
        ),
    },
)

OUTLINES = (
    (
        (
            "{opening} {Day}, {hero} and {friend} were carrying {thing.a} home from the [market|mill|farm] when they "
            "heard {cry}."
        ),
        (
            '[They followed the sound.|They ran to look.|They looked around.] {where} "[Oh, the poor '
            '{victim}|Look|We must help]!" {friend.cried}.'
        ),
        (
            '{first_try} {Hero} looked around, and {hero.his} eyes fell on {thing.the}. "[I know what to do|I have an '
            'idea|That will help]," {hero.he} said.'
        ),
        '{reach} "You are safe now," {hero.whispered}.',
        "{home} {ending}",
    ),
    (
        (
            '"[Hush|Wait|Listen]," {hero.said}. "[Did you hear that|What was that]?" {Friend} held {friend.his} '
            "breath. From somewhere came {cry}."
        ),
        "{where} {first_try}",
        (
            '{Hero}, {hero.a_kind}, was afraid, but the {victim} was even more afraid. "[Hold on|Do not move]!" '
            '{hero.he} called. "I [am coming|will help you]!" In the shed nearby was {thing.a}, and {hero} fetched '
            "{thing.them} in a flash."
        ),
        "{reach} {home}",
        (
            '"That was the bravest thing I have ever seen," {friend.said}. {Hero} looked at {hero.his} {hero.paws}. '
            "They were still [trembling|shaking], but {hero.he} {hero.was} smiling."
        ),
    ),
    (
        (
            "[Nobody had ever thought|No one believed|Hardly anyone thought] that {thing.the} would be good for "
            "anything. {Thing.it} had been lying in a corner of the shed for years. But {hero} could not throw "
            "{thing.them} away."
        ),
        (
            "{Day}, {hero} was [walking home|picking berries|out in the fields] with {friend} when they heard {cry}. "
            "{where}"
        ),
        "{first_try} Then {hero} remembered {thing.the}, ran to the shed and came back [out of breath|in no time].",
        "{reach} {Friend} [clapped {friend.his} hands|cheered|shouted for joy]. {home}",
        (
            "After that, {thing.the} got a place of honour [above the fireplace|on the kitchen wall|right by the front "
            "door]."
        ),
    ),
)

RESCUE = Scheme("rescue", THINGS, (DANGER, FIRST_TRY), OUTLINES)
