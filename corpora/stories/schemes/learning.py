"""Learning a skill: wanting, failing, one piece of advice, practice, and the day when it matters."""

from ..lexicon import METALS, StoryNoun
from ..scheme import Scheme

THINGS = (
    StoryNoun("flute", ("wooden", "silver", "old")),
    StoryNoun("fiddle", ("brown", "old", "small")),
    StoryNoun("horn", METALS),
    StoryNoun("accordion", ("red", "black", "old")),
    StoryNoun("trumpet", ("brass", "shiny", "golden")),
    StoryNoun("harp", ("golden", "small", "old")),
    StoryNoun("banjo", ("round", "yellow", "old")),
    StoryNoun("guitar", ("blue", "brown", "old")),
    StoryNoun("bagpipes", ("green", "old", "noisy"), "a set of"),
    StoryNoun("cymbals", ("brass", "copper", "shiny"), "a pair of"),
    StoryNoun("drums", ("red", "loud", "new"), "a set of"),
)

FAILURE = (
    {
        "failure": (
            "The first sound was so awful that the {bird} in the garden [fell silent|flew away] and the [cat|dog] "
            "[left the room|hid under the sofa]."
        ),
        "advice": (
            '"Begin slowly," {elder.said}. "A snail that keeps going [is faster than|beats] a hare that stops."'
        ),
        "practice": (
            "So {hero} played one note, and then another, as slowly as a snail. After [a week|ten days|a month] there "
            "was a tune."
        ),
    },
    {
        "failure": (
            "{Hero} tried for [an hour|two hours|a whole afternoon], but nothing came out except [squeaks and bangs|a "
            "noise like a rusty gate]."
        ),
        "advice": '"Do not fight with {thing.them}," {elder.said}. "Listen first, and play after that."',
        "practice": (
            "So {hero} sat in the meadow and listened to the [crickets|frogs|bees], the [rain|leaves] and the wind. "
            "Then {hero.he} tried to play what {hero.he} had heard, and it was music."
        ),
    },
    {
        "failure": (
            "{Hero.his} {hero.paws} got in a tangle, and the neighbours closed their [windows|shutters] one by one."
        ),
        "advice": (
            '"Mistakes are only stairs," {elder.said}. "You step on each of them once, and every time you are a little '
            'higher."'
        ),
        "practice": (
            "So {hero} counted the mistakes. There were [ninety|eighty|a hundred] on Monday, [forty|thirty|fifty] on "
            "Wednesday, and on Sunday there were only three."
        ),
    },
    {
        "failure": (
            "The first song came out backwards, the second came out upside down, and the third [one |]did not come out "
            "at all."
        ),
        "advice": '"Play for somebody, not at somebody," {elder.said}. "Think of one listener whom you like."',
        "practice": (
            "So {hero} put a [turnip|pumpkin] with a friendly face on a chair and played for it every evening. It "
            "never complained, and each evening the music was better."
        ),
    },
    {
        "failure": (
            "After one verse the milk turned sour, or so {hero.his} brother said, and a [dog|wolf] far away began to "
            "howl."
        ),
        "advice": (
            '"You hold your breath when you play," {elder.said}. "Music has to breathe, like everything that is alive."'
        ),
        "practice": (
            "So {hero} learned to breathe. {Hero.he} breathed in with the left foot and out with the right foot, all "
            "the way to the [mill|lake|village] and back, and the next day the music began to flow."
        ),
    },
)

MATTER = (
    {
        "wish": "{Hero} wanted to play in the village band, which marched through the streets every {season}",
        "teacher_from": "who had once played before a king",
        "matter": (
            "On the day of the parade, the leader of the band lost his place, and the music fell apart. {Hero} stepped "
            "forward and played the tune, loud and clear, and [one after another|row by row] the others joined in."
        ),
        "praise": '"You have saved the [parade|day]!" [everyone|the whole band] shouted.',
    },
    {
        "wish": "{Hero} wanted to play a lullaby for {hero.his} baby sister, who cried every night",
        "teacher_from": "who knew every lullaby in the valley",
        "matter": (
            "That night the baby cried louder than ever. {Hero} sat down beside the cradle and played, very softly. "
            "The baby stopped, [stared|looked] with big round eyes, and fell asleep."
        ),
        "praise": '"Listen," the whole family whispered. "It is quiet at last."',
    },
    {
        "wish": "{Hero} wanted to play at the lantern dance, where the lamps hung in the trees",
        "teacher_from": "who had played at every dance for fifty years",
        "matter": (
            "At the lantern dance it was {hero.his} turn. {Hero.his} knees shook. Then {hero.he} began, and [feet "
            "tapped|hands clapped], [skirts whirled|boots stamped], and even the old [judge|doctor|mayor] danced on a "
            "table."
        ),
        "praise": '"[Once more|Do not stop]!" the dancers called. "[Once more|Another one]!"',
    },
    {
        "wish": "{Hero} wanted to play like the travelling musicians who came over the hills once a year",
        "teacher_from": "who had travelled with them when young",
        "matter": (
            'When the musicians came again, one of them was ill. "Can anybody [here |]take his place?" [they|the '
            "others] asked. {Hero} stood up, [swallowed hard|took a deep breath], and played the whole evening."
        ),
        "praise": '"You are one of us now," the musicians said.',
    },
)

OUTLINES = (
    (
        "{opening} {wish}. So {hero.he} took {thing.a} down from the attic.",
        (
            '[It looked so easy, but it was not.|It was harder than it looked.] {failure} "[I will never learn it|It '
            'is no use|I sound like a broken door]," {hero.sighed}.'
        ),
        "The only one who did not laugh was {elder}, {teacher_from}. {advice}",
        "{practice}",
        "{matter} {praise} [{ending}|]",
    ),
    (
        (
            "{Day}, {hero} found {thing.a} at the market, half hidden [under a pile of rugs|behind some pots|in a box "
            "of old books]. {wish}, and {thing.the} cost only [two|three|four] coins."
        ),
        "At home, {hero} [locked the door|took a deep breath] and began. {failure}",
        (
            '"[May I come in|What was that|Who is playing there]?" {elder.asked}. {Hero} turned as red as a '
            "[beet|tomato|poppy]. But {elder}, {teacher_from}, did not make fun of {hero.him}. {advice}"
        ),
        "{practice} {matter}",
        "{praise} {Hero} looked around and found the face of {elder}, who only nodded, and that was enough.",
    ),
    (
        (
            '"Please stop!" said [everyone|the neighbours|the whole street], whenever {hero} took out {thing.the}. '
            "{failure} But {hero} was {hero.a_kind} and did not want to stop. {wish}."
        ),
        "In the end {hero} walked up the hill to {elder}, {teacher_from}. {advice}",
        '{practice} [Nobody said "please stop" any more.|The neighbours opened their windows again.]',
        "{matter} {praise}",
        "{ending}",
    ),
)

LEARNING = Scheme("learning", THINGS, (FAILURE, MATTER), OUTLINES)
