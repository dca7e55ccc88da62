"""The words of the stories, as data."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HeroKind:
    """A kind of hero: its world decides its names, its pronouns are those it may have."""

    noun: str
    world: str
    pronouns: tuple[str, ...]
    home: str
    paws: str = "paws"


@dataclass(frozen=True)
class Trait:
    """A character trait: what it is called, what it makes its owner do, and what it brings to an ending."""

    adjective: str
    habit: str
    closing: str


@dataclass(frozen=True)
class StoryNoun:
    """A thing and the adjectives it may have; a plural noun has a measure in place of its article."""

    noun: str
    adjectives: tuple[str, ...]
    measure: str = ""


KINDS = (
    HeroKind("girl", "town", ("she",), "a [small|white|crooked] house by the [market|bridge|mill]", "hands"),
    HeroKind("boy", "town", ("he",), "a [low|yellow|narrow] house near the [harbour|church|orchard]", "hands"),
    HeroKind("child", "town", ("they",), "a [tall|quiet] house at the end of the lane", "hands"),
    HeroKind("fox", "wood", ("he", "she"), "a den under [a thorn bush|a fallen log]"),
    HeroKind("rabbit", "wood", ("he", "she"), "a burrow at the edge of the meadow"),
    HeroKind("mouse", "wood", ("he", "she"), "a hole in the wall of an old mill"),
    HeroKind("bear", "wood", ("he", "she"), "a dry cave above the valley"),
    HeroKind("squirrel", "wood", ("he", "she", "they"), "a hollow high up in the {tree}"),
    HeroKind("otter", "wood", ("he", "she"), "a snug den in the bank of the stream"),
    HeroKind("hedgehog", "wood", ("he", "she", "they"), "a nest of dry leaves behind the barn"),
    HeroKind("badger", "wood", ("he", "she"), "a deep warm house below the {tree}"),
    HeroKind("beaver", "wood", ("he", "she"), "a lodge of sticks and mud on the lake"),
    HeroKind("mole", "wood", ("he", "she"), "a round room at the end of a tunnel"),
    HeroKind("cat", "wood", ("he", "she"), "a basket in the corner of a farm kitchen"),
)

NAMES = {
    "town": {
        "she": (
            "Mia",
            "Nora",
            "Lily",
            "Ada",
            "Ruby",
            "Clara",
            "Ella",
            "Maya",
            "Zoe",
            "Ivy",
            "Leila",
            "Anna",
            "Greta",
            "Lucy",
            "Rosa",
            "Amina",
            "Edie",
        ),
        "he": (
            "Tom",
            "Sam",
            "Leo",
            "Max",
            "Finn",
            "Omar",
            "Hugo",
            "Noah",
            "Ravi",
            "Jack",
            "Theo",
            "Ben",
            "Emil",
            "Arthur",
            "Luca",
            "Oliver",
            "Karim",
        ),
        "they": ("Robin", "Alex", "Charlie", "Quinn", "Sasha"),
    },
    "wood": {
        "she": (
            "Hazel",
            "Poppy",
            "Willow",
            "Clover",
            "Tansy",
            "Pepper",
            "Juniper",
            "Fern",
            "Dot",
            "Maple",
            "Minnow",
            "Olive",
            "Cricket",
            "Heather",
            "Biscuit",
        ),
        "he": (
            "Pip",
            "Rowan",
            "Bramble",
            "Rusty",
            "Acorn",
            "Barley",
            "Thistle",
            "Nutmeg",
            "Twig",
            "Bark",
            "Burdock",
            "Chestnut",
            "Flint",
            "Toby",
        ),
        "they": ("Pebble", "Sorrel", "Reed", "Marlow"),
    },
}

ELDERS = {
    "she": ("Grandma Rose", "Grandma Pearl", "Aunt May", "Aunt Opal", "Grandma Edna"),
    "he": ("Grandpa Joe", "Grandpa Hugh", "Uncle Ned", "Uncle Abe", "Grandpa Will"),
}

NEIGHBOURS = {
    "she": (
        "Martha the weaver",
        "Agatha the beekeeper",
        "Hilda the potter",
        "Edith the baker",
        "Bertha the ferrywoman",
    ),
    "he": ("Walter the baker", "Oscar the clockmaker", "Bernard the miller", "Felix the gardener", "Otto the cobbler"),
}

TRAITS = (
    Trait("curious", "asked questions about everything", "{Hero} already had three new questions to ask."),
    Trait("patient", "never minded waiting", "Good things, {hero} thought, are worth a little waiting."),
    Trait("shy", "spoke so softly that others had to lean close", "For once, {hero} did not feel shy at all."),
    Trait("brave", "climbed every wall and every tree", "{Hero} felt braver than ever before."),
    Trait("clever", "loved puzzles and riddles", "No riddle had ever made {hero} feel so pleased."),
    Trait("cheerful", "whistled from morning to night", "{Hero} whistled until it was time for bed."),
    Trait(
        "careful",
        "counted everything twice",
        ("{Hero} counted the good things of the day, and then counted them again."),
    ),
    Trait("dreamy", "liked to watch the clouds go by", "That night {hero} had the sweetest dreams in the valley."),
    Trait("stubborn", "never gave up before supper", "It was a good thing, {hero} thought, that nobody had given up."),
    Trait("kind", "always saved a crumb for the birds", "In the morning, the birds got an extra crumb."),
    Trait("playful", "turned every chore into a game", "{Hero} decided that it had been the best game of all."),
    Trait("hasty", "ran everywhere and never walked", "For the first time that day, {hero} sat quite still."),
    Trait("proud", "did not like to ask for help", "Some things, {hero} had learned, are better with company."),
    Trait("eager", "woke before the sun every day", "Tomorrow, {hero} would wake before the sun again."),
    Trait("thoughtful", "remembered every birthday in the village", "{Hero} knew that this was a day to remember."),
    Trait(
        "untidy",
        "kept acorns, strings and buttons in every pocket",
        "{Hero} even tidied the shelf before going to bed.",
    ),
)

COLOURS = ("red", "blue", "green", "yellow", "purple", "orange", "white")
METALS = ("silver", "brass", "copper", "golden", "tin")
WOODS = ("oak", "pine", "wooden", "painted")
CLOTHS = ("striped", "woollen", "red", "blue", "grey", "spotted")

FOODS = (
    "apple tart",
    "plum cake",
    "cherry pie",
    "honey cake",
    "pear tart",
    "ginger cake",
    "berry pie",
    "walnut loaf",
    "onion pie",
)
SOUPS = ("pea soup", "pumpkin soup", "carrot soup", "onion soup", "mushroom soup", "barley soup")
TREES = ("oak", "elm", "ash", "willow", "birch", "chestnut", "beech")
BIRDS = ("wren", "thrush", "blackbird", "swallow", "finch", "lark", "sparrow", "owl")

SEASONS = (
    {
        "season": "spring",
        "flowers": "[bluebells|primroses|violets|daffodils]",
        "air": "The [air smelled of wet earth|buds were opening on every branch|lambs were calling in the fields]",
        "dusk": "[A cool spring evening settled on the roofs|The last light lay pink on the blossom]",
    },
    {
        "season": "summer",
        "flowers": "[poppies|daisies|foxgloves|buttercups]",
        "air": "The [bees hummed in the clover|air smelled of cut hay|sky was blue from end to end]",
        "dusk": "[The long summer day went slowly to sleep|Moths danced around the lamp]",
    },
    {
        "season": "autumn",
        "flowers": "[asters|marigolds|dahlias|crocuses]",
        "air": "The [leaves were turning gold|air smelled of smoke and apples|geese were flying south]",
        "dusk": "[The autumn moon rose round and yellow|Leaves rustled softly past the window]",
    },
)

SHARED_FACTS = {
    "day": (
        "[One {fine} morning|One {fine} {season} morning|One {fine} day|One day in {season}|Early one morning|One "
        "{season} day]"
    ),
    "fine": "[bright|clear|fresh|mild|quiet|sunny|still]",
    "opening": (
        "[Once there was {hero.intro} who lived in {hero.home}."
        "|{Hero} was {hero.a_kind}, and {hero.he} {hero.habit}."
        "|[Where the river bends|Not far from the hills|Beyond the last field] lived {hero.intro}. "
        "{Hero.he} {hero.habit}."
        "|{Hero}, {hero.a_kind}, lived in {hero.home}."
        "|Everyone [in the valley|for miles around] knew {hero}, the {hero.kind} who {hero.habit}."
        "|In {hero.home} there lived {hero.intro}.]"
    ),
    "ending": (
        "[{goodnight}|{goodnight}|{Dusk}, and {hero} [smiled|was happy|felt warm inside].|{Dusk}. It had been a "
        "[good|fine|long] day.]"
    ),
    "goodnight": (
        "[{hero.closing}|{hero.closing}"
        "|That night {hero} slept [well|soundly|like a stone|without a single bad dream]."
        "|[And {hero} never forgot it.|{Hero} thought about it for many days.|{Hero} still tells the story today.]"
        "|At supper there was {soup}, and {hero} ate [two|three|four] bowls of it."
        "|{Hero} [fell asleep|went to bed|climbed into bed] that night "
        "with [a smile|tired feet|a full heart|a happy sigh]."
        "|[Just before|When] {hero} [blew out the candle|closed {hero.his} eyes|fell asleep], "
        "{hero.he} [smiled|{hero.was} smiling]."
        "|{Hero} felt as [light as a feather|happy as a lark|proud as a peacock|warm as toast|tall as a {tree}].]"
    ),
    "aside": (
        "[|||[A|Somewhere a|High up, a] {bird} [sang|called|whistled] [in the {tree}|from the roof|above the fields]."
        "|A [soft|cool|gentle|sleepy] [breeze|wind] [stirred|ran through|played with] the [leaves|grass|reeds]."
        "|A [bee|beetle|butterfly|spider] was [busy|resting|wandering about] "
        "[on the gatepost|among the {flowers}|near the well]."
        "|{Air}.|The {flowers} [nodded|trembled|shone] [along the path|by the fence|beside the ditch].]"
    ),
}
