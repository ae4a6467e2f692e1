"""The small world of the models: children's stories, ChatML chats and a copying curriculum.

Everything is written by the templates in this file and in `wording.py`, so the text (and what is trained on it) has no
other source. `documents.py` writes texts of it.

The small world: greetings, names, arithmetic up to 20, counting, opposites, animals, colours, days,
months, spelling, categories, comparisons, reading, jokes, feelings, stories. Everything else is
answered with "I do not know that."
"""

from __future__ import annotations

import re
from typing import Callable, NamedTuple

from wording import Rng, reworded, say

END = "<|endoftext|>"

# --------------------------------------------------------------------------- text helpers

def an(noun: str) -> str:
    return ("an " if noun[0] in "aeiouAEIOU" and not noun.startswith("uni") else "a ") + noun


def articles(text: str) -> str:
    return re.sub(r"\b([Aa]) (?=[aeio]|umb)", lambda m: m.group(1) + "n ", text)


def cap(s: str) -> str:
    return s[:1].upper() + s[1:]


IRREGULAR = {
    "mouse": "mice", "sheep": "sheep", "fish": "fish", "goose": "geese", "wolf": "wolves", "fox": "foxes",
    "deer": "deer", "child": "children", "foot": "feet", "tooth": "teeth", "man": "men", "woman": "women",
    "leaf": "leaves", "knife": "knives", "peach": "peaches", "bus": "buses", "strawberry": "strawberries",
    "cherry": "cherries", "butterfly": "butterflies", "puppy": "puppies", "pony": "ponies", "box": "boxes",
    "tomato": "tomatoes", "potato": "potatoes", "daisy": "daisies", "ostrich": "ostriches", "donkey": "donkeys",
    "monkey": "monkeys", "turkey": "turkeys", "berry": "berries", "lily": "lilies", "bunny": "bunnies",
    "brush": "brushes", "glass": "glasses", "dress": "dresses", "baby": "babies", "city": "cities",
}


def plural(noun: str) -> str:
    return IRREGULAR.get(noun, noun + "s")


def listing(items: list[str]) -> str:
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


NUMBERS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
           "sixteen seventeen eighteen nineteen twenty").split()

_ON = "b c d f g h j k l m n p r s t v w z br dr gl kr pl st tr sh th fl qu".split()
_NU = "a e i o u ai ee oo ou ia oa".split()
_CO = "n l r s m t k x nd ph sh v z".split()


def made_up(r: Rng) -> str:
    """A pronounceable word of two or three syllables that has no frequency to guess from."""
    w = "".join(r.choice(_ON) + r.choice(_NU) for _ in range(r.choice((2, 2, 3))))
    return w + (r.choice(_CO) if r.random() < 0.5 else "")


# --------------------------------------------------------------------------- the small world

GIRLS = ("Mia Lily Anna Zoe Emma Sara Ella Ruby Lucy Nora Ivy Rose Mina Tina Kate Eva Maya Lena Amy Clara Alice "
         "Hana Yuki Aiko Daisy Molly Sophie Grace Julia Olivia Nina Leila Priya Sofia").split()
BOYS = ("Tom Max Ben Sam Leo Jack Eli Tim Finn Oscar Noah Adam Luke Theo Kai Dan Hugo Peter Omar Ken Ravi Felix "
        "Jonas Paul David Henry Oliver Ryo Taro Ivan Marco Alex Will Joe").split()
PETS = ("Pip Momo Pepper Biscuit Coco Nibbles Sunny Poppy Bubbles Hazel Rusty Maple Clover Pebble Toffee Juniper "
        "Bramble Waffles Mochi Button Spot Rex Bella Luna Rocky Fluffy").split()

KINDS = ("fox cat dog rabbit bear mouse frog duck owl hedgehog squirrel turtle bird pig pony lamb elephant lion "
         "monkey penguin panda deer goat otter beaver kitten puppy bee ant snail dragon robot").split()
OBJECTS = ("ball kite lantern drum bell boat book hat scarf key box cup doll train car whistle shell button "
           "flute blanket umbrella basket ring pencil star map coin feather stone spoon wagon top mirror crown").split()
COLORS = "red blue green yellow orange purple pink white black brown gray".split()
PLACES = ("forest|garden|park|river|meadow|beach|hill|farm|village|pond|big tree|old bridge|lake|market").split("|")

SOUND = {"cow": "moo", "dog": "woof", "cat": "meow", "duck": "quack", "sheep": "baa", "pig": "oink",
         "horse": "neigh", "frog": "ribbit", "bee": "buzz", "lion": "roar", "owl": "hoot", "mouse": "squeak",
         "snake": "hiss", "rooster": "cock-a-doodle-doo", "hen": "cluck", "crow": "caw", "bird": "tweet",
         "donkey": "hee-haw", "turkey": "gobble", "bear": "growl", "goose": "honk", "wolf": "howl"}
HOME = {"bee": "in a hive", "bird": "in a nest", "fish": "in the water", "fox": "in a den", "rabbit": "in a burrow",
        "horse": "in a stable", "dog": "in a kennel", "bear": "in a cave", "spider": "in a web",
        "ant": "in an anthill", "frog": "in a pond", "pig": "in a sty", "cow": "in a barn", "squirrel": "in a tree",
        "penguin": "on the ice", "whale": "in the sea", "owl": "in a tree", "mouse": "in a hole",
        "camel": "in the desert", "monkey": "in the jungle", "duck": "on a pond", "hen": "in a coop",
        "shark": "in the sea", "lion": "in the grassland", "snail": "in its shell", "king": "in a castle",
        "bat": "in a cave", "tiger": "in the jungle"}
YOUNG = {"cat": "kitten", "dog": "puppy", "cow": "calf", "horse": "foal", "sheep": "lamb", "duck": "duckling",
         "hen": "chick", "pig": "piglet", "bear": "cub", "lion": "cub", "frog": "tadpole", "goat": "kid",
         "goose": "gosling", "kangaroo": "joey", "deer": "fawn", "owl": "owlet", "wolf": "cub", "eagle": "eaglet"}
EATS = {"cow": "grass", "rabbit": "carrots", "mouse": "cheese", "squirrel": "nuts", "bear": "honey",
        "monkey": "bananas", "panda": "bamboo", "horse": "hay", "bird": "seeds", "cat": "fish", "dog": "bones",
        "frog": "flies", "giraffe": "leaves", "sheep": "grass", "penguin": "fish", "lion": "meat", "duck": "bread",
        "owl": "mice", "goat": "grass", "wolf": "meat", "koala": "leaves", "hen": "corn"}
LEGS = {"cow": 4, "dog": 4, "cat": 4, "horse": 4, "sheep": 4, "pig": 4, "lion": 4, "fox": 4, "elephant": 4,
        "mouse": 4, "frog": 4, "duck": 2, "bird": 2, "hen": 2, "penguin": 2, "owl": 2, "spider": 8, "ant": 6,
        "bee": 6, "butterfly": 6, "snake": 0, "fish": 0, "worm": 0, "person": 2, "rabbit": 4, "bear": 4}
FLIES = {"bird": 1, "bee": 1, "owl": 1, "duck": 1, "eagle": 1, "butterfly": 1, "crow": 1, "bat": 1, "penguin": 0,
         "dog": 0, "cat": 0, "cow": 0, "pig": 0, "horse": 0, "fish": 0, "elephant": 0, "frog": 0, "snake": 0,
         "lion": 0, "ostrich": 0, "rabbit": 0, "mouse": 0}
SWIMS = {"fish": 1, "duck": 1, "frog": 1, "whale": 1, "shark": 1, "penguin": 1, "swan": 1, "otter": 1, "dolphin": 1,
         "hen": 0, "snail": 0, "bee": 0, "butterfly": 0, "spider": 0, "owl": 0, "goat": 0}
COLOR_OF = {"banana": "yellow", "lemon": "yellow", "strawberry": "red", "tomato": "red", "cherry": "red",
            "carrot": "orange", "pumpkin": "orange", "frog": "green", "leaf": "green", "cucumber": "green",
            "pea": "green", "elephant": "gray", "mouse": "gray", "crow": "black", "swan": "white", "cloud": "white",
            "flamingo": "pink", "pig": "pink", "plum": "purple", "fire truck": "red", "polar bear": "white",
            "bear": "brown", "potato": "brown", "fox": "orange", "chick": "yellow", "lime": "green",
            "blueberry": "blue", "rose": "red", "sunflower": "yellow", "tree trunk": "brown"}
COLOR_OF_MASS = {"grass": "green", "the sky": "blue", "snow": "white", "the sun": "yellow", "coal": "black",
                 "milk": "white", "chocolate": "brown", "blood": "red", "the sea": "blue", "the night": "black",
                 "fire": "red", "earth": "brown", "the moon": "white", "honey": "yellow", "rice": "white"}
MIXES = {("red", "yellow"): "orange", ("blue", "yellow"): "green", ("red", "blue"): "purple",
         ("black", "white"): "gray", ("red", "white"): "pink"}
OPPOSITES = [p.split("-") for p in (
    "hot-cold big-small up-down day-night happy-sad fast-slow tall-short open-closed wet-dry light-dark new-old "
    "good-bad hard-soft loud-quiet full-empty left-right in-out yes-no young-old clean-dirty strong-weak early-late "
    "rich-poor high-low near-far thick-thin black-white first-last long-short sweet-sour push-pull start-stop "
    "win-lose true-false heavy-light begin-end come-go give-take asleep-awake brave-afraid inside-outside "
    "top-bottom front-back always-never love-hate friend-enemy easy-difficult right-wrong").split()]
CATEGORY = {
    "fruit": "apple banana pear orange lemon strawberry cherry peach plum grape melon kiwi",
    "vegetable": "carrot potato pea cucumber onion bean pumpkin cabbage radish",
    "animal": "dog cat cow horse lion rabbit fox bear elephant sheep mouse tiger",
    "bird": "owl duck eagle crow swan hen penguin parrot goose",
    "flower": "rose tulip daisy lily sunflower violet",
    "toy": "ball doll kite drum puzzle robot yo-yo",
    "tool": "hammer saw shovel rake ladder brush",
    "insect": "ant bee butterfly fly ladybug",
    "drink": "water milk juice tea lemonade",
    "color": "red blue green yellow orange purple pink white black brown",
    "vehicle": "car bus train bike boat truck plane",
    "tree": "oak pine maple willow birch",
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "shape": "circle square triangle star heart",
}
CATEGORY = {k: v.split() for k, v in CATEGORY.items()}
MASS = set(CATEGORY["drink"]) | set(CATEGORY["color"]) | set(CATEGORY["day"])
SIZE = "ant bee mouse frog duck cat dog sheep pig cow horse elephant whale".split()
SPEED = "snail turtle hen pig dog rabbit horse cheetah".split()
DAYS = CATEGORY["day"]
MONTHS = "January February March April May June July August September October November December".split()
MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
SEASONS = "spring summer autumn winter".split()
SEASON_OF = ["winter", "winter", "spring", "spring", "spring", "summer", "summer", "summer", "autumn", "autumn",
             "autumn", "winter"]
SPELL = ("cat dog sun hat bed cup pig cow fox box red blue tree moon star fish bird milk ball book home door hand "
         "frog bear duck cake rain snow leaf apple house water green happy mouse horse bread chair table school "
         "sprout friend").split()
RHYMES = {"cat": "hat", "dog": "frog", "sun": "fun", "moon": "spoon", "star": "car", "tree": "bee", "house": "mouse",
          "cake": "lake", "ball": "wall", "king": "ring", "light": "night", "bear": "chair", "rain": "train",
          "boat": "goat", "book": "cook", "fox": "box", "snow": "crow", "day": "play", "bed": "red", "hen": "pen",
          "bell": "shell", "fish": "dish", "blue": "shoe", "big": "pig", "sing": "ring", "hot": "pot"}
BODY = {"see": "eyes", "hear": "ears", "smell": "nose", "taste": "tongue", "walk": "feet", "write": "hand",
        "think": "brain", "chew": "teeth", "wave": "hand", "kick": "foot"}
BODY_COUNT = {"eyes": 2, "ears": 2, "hands": 2, "feet": 2, "fingers": 10, "toes": 10, "noses": 1, "legs": 2,
              "arms": 2, "thumbs": 2}
USES = {"cut paper": "scissors", "write": "a pencil", "stay dry in the rain": "an umbrella", "eat soup": "a spoon",
        "open a lock": "a key", "tell the time": "a clock", "sleep": "a bed", "hit a nail": "a hammer",
        "brush my teeth": "a toothbrush", "sweep the floor": "a broom", "dig a hole": "a shovel",
        "drink tea": "a cup", "see in the dark": "a lamp", "cut bread": "a knife", "dry my hands": "a towel",
        "comb my hair": "a comb", "cross a river": "a boat", "climb on a roof": "a ladder", "carry books": "a bag",
        "keep my head warm": "a hat", "take a photo": "a camera", "keep milk cold": "a fridge"}
MADE_OF = {"window": "glass", "book": "paper", "table": "wood", "snowman": "snow", "coin": "metal",
           "sweater": "wool", "castle on the beach": "sand", "shoe": "leather", "nest": "twigs", "house": "bricks",
           "bottle": "glass", "key": "metal", "pencil": "wood", "tire": "rubber", "candle": "wax"}
GIVES = {"milk": "a cow", "eggs": "a hen", "honey": "a bee", "wool": "a sheep"}
TRUTHS = {  # question -> (answer, key)
    "Is fire hot?": ("Yes, fire is hot.", "yes"), "Is ice cold?": ("Yes, ice is cold.", "yes"),
    "Is ice hot?": ("No, ice is cold.", "no"), "Is fire cold?": ("No, fire is hot.", "no"),
    "Is the sun hot?": ("Yes, the sun is very hot.", "yes"), "Is snow warm?": ("No, snow is cold.", "no"),
    "Is water wet?": ("Yes, water is wet.", "yes"), "Is sugar sweet?": ("Yes, sugar is sweet.", "yes"),
    "Is a lemon sweet?": ("No, a lemon is sour.", "no"), "Is a stone soft?": ("No, a stone is hard.", "no"),
    "Is a pillow soft?": ("Yes, a pillow is soft.", "yes"), "Is a feather heavy?": ("No, a feather is light.", "no"),
    "Is a mouse big?": ("No, a mouse is small.", "no"), "Is an elephant big?": ("Yes, an elephant is very big.", "yes"),
    "Is a turtle fast?": ("No, a turtle is slow.", "no"), "Is a snail slow?": ("Yes, a snail is slow.", "yes"),
    "Is honey sweet?": ("Yes, honey is sweet.", "yes"), "Is the moon bigger than the sun?": ("No, the sun is bigger.", "no"),
    "Does the sun shine at night?": ("No, the sun shines in the day.", "no"),
    "Do stars shine at night?": ("Yes, stars shine at night.", "yes"),
    "Do fish have legs?": ("No, fish do not have legs.", "no"), "Do birds have wings?": ("Yes, birds have wings.", "yes"),
    "Do cows eat grass?": ("Yes, cows eat grass.", "yes"), "Do dogs lay eggs?": ("No, dogs do not lay eggs.", "no"),
    "Do hens lay eggs?": ("Yes, hens lay eggs.", "yes"), "Do bees make honey?": ("Yes, bees make honey.", "yes"),
    "What falls from the clouds?": ("Rain falls from the clouds.", "rain"),
    "What do plants need?": ("Plants need water and light.", "water"),
    "Where does the sun rise?": ("The sun rises in the east.", "east"),
    "Where does the sun set?": ("The sun sets in the west.", "west"),
    "What is frozen water?": ("Frozen water is ice.", "ice"),
    "What happens to ice in the sun?": ("Ice melts in the sun.", "melts"),
    "When do we eat breakfast?": ("We eat breakfast in the morning.", "morning"),
    "When do we sleep?": ("We sleep at night.", "night"),
    "What shines in the day?": ("The sun shines in the day.", "sun"),
    "What shines at night?": ("The moon and the stars shine at night.", "moon"),
    "How many wheels does a car have?": ("A car has 4 wheels.", "4"),
    "How many wheels does a bike have?": ("A bike has 2 wheels.", "2"),
    "How many sides does a triangle have?": ("A triangle has 3 sides.", "3"),
    "How many sides does a square have?": ("A square has 4 sides.", "4"),
    "What is the biggest animal?": ("The biggest animal is the whale.", "whale"),
    "Who puts out fires?": ("A firefighter puts out fires.", "firefighter"),
    "Who helps sick people?": ("A doctor helps sick people.", "doctor"),
    "Who bakes bread?": ("A baker bakes bread.", "baker"), "Who teaches children?": ("A teacher teaches children.", "teacher"),
    "Who grows food on a farm?": ("A farmer grows food on a farm.", "farmer"),
}
JOKES = [
    "Why did the cow cross the road? To get to the moo-vies!", "What do you call a sleeping bull? A bulldozer!",
    "What do cows read? The moos-paper!", "Why do bees have sticky hair? Because they use honeycombs!",
    "What do you call a bear with no teeth? A gummy bear!", "Why did the banana go to the doctor? It was not peeling well!",
    "What is a cat's favorite color? Purr-ple!", "Why can you never trick a snake? You cannot pull its leg!",
    "What do you call a fish with no eyes? A fsh!", "Why did the teddy bear say no to cake? It was stuffed!",
    "What did one wall say to the other wall? I will meet you at the corner!",
    "What has a face and two hands but no legs? A clock!", "What gets wet while it dries? A towel!",
    "Why did the model eat so little? It had only a few bits!",
]
POEMS = {
    "the moon": "The moon is round, the moon is bright,\nit shines for me all through the night.",
    "the rain": "Drip, drop, drip, the rain comes down,\nit washes every roof in town.",
    "a cat": "A little cat sat on a mat,\nand dreamed of fish, and that was that.",
    "a tree": "A tree was once a tiny seed,\nwith sun and rain, all it did need.",
    "the sea": "The sea is wide, the sea is blue,\nit sings a gentle song to you.",
    "a bee": "A busy bee flew to a tree,\nand found some honey there for me.",
    "snow": "The snow is white, the snow is deep,\nit helps the little seeds to sleep.",
    "a star": "A little star is far away,\nit says good night and ends the day.",
    "spring": "The spring is here, the leaves are green,\nthe nicest flowers I have seen.",
    "a dog": "A happy dog ran to the gate,\nand for its friend it sat to wait.",
}

# --------------------------------------------------------------------------- unknown things

COUNTRIES = ("France Germany Spain Italy Japan China India Brazil Canada Mexico Egypt Kenya Peru Chile Norway Sweden "
             "Poland Greece Turkey Russia Australia Portugal Argentina Nigeria Vietnam Thailand Korea Iran Iraq "
             "Finland Denmark Ireland Scotland England Austria Hungary Cuba Colombia Morocco Ghana Texas Ohio "
             "California Ukraine Belgium Iceland Nepal Indonesia Malaysia Switzerland").split()
CITIES = "Paris London Berlin Rome Tokyo Madrid Moscow Boston Chicago Sydney Delhi Cairo Lima Oslo Vienna Dublin".split()
FAMOUS = ("Einstein|Napoleon|Shakespeare|Mozart|Caesar|Newton|Darwin|Lincoln|Picasso|Beethoven|Gandhi|Cleopatra|"
          "Columbus|Galileo|Washington|Aristotle|Marie Curie|Alan Turing|Elon Musk|Taylor Swift|Tesla|Plato|Obama|"
          "Churchill|Bach|Edison|Kant|Homer|Leonardo da Vinci|Van Gogh").split("|")
SUBJECTS = ("quantum physics|gravity|photosynthesis|democracy|inflation|the stock market|a black hole|DNA|an atom|"
            "electricity|the internet|blockchain|machine learning|a neural network|algebra|calculus|a volcano|"
            "philosophy|an algorithm|a compiler|a virus|evolution|the Roman Empire|World War II|the Cold War|"
            "the French Revolution|a prime number|a square root|a transistor|tax law|global warming|chess|football|"
            "bitcoin|a vaccine|an operating system|a database|HTML|oxygen|relativity|the Milky Way|a mortgage|"
            "a noun|the economy|nuclear power|opera|the Bible|yoga|a lawyer|a tsunami|a galaxy").split("|")
LANGS = "French German Spanish Italian Japanese Chinese Latin Russian Arabic Hindi Greek Korean".split()
CODE = "Python|Java|C|Rust|JavaScript|SQL|bash|C++|Go".split("|")
EVENTS = ("World War I|the Second World War|the moon landing|the French Revolution|the fall of Rome|the Titanic|"
          "the Olympic Games|the Civil War|the first computer|the printing press|the Berlin Wall").split("|")
UNKNOWN = [
    "What is the capital of {country}?", "What is the capital city of {country}?", "Who is the president of {country}?",
    "Who is the king of {country}?", "How many people live in {country}?", "How many people live in {city}?",
    "Where is {country}?", "Where is {city}?", "What language do they speak in {country}?", "How big is {country}?",
    "Who was {famous}?", "Who is {famous}?", "When was {famous} born?", "When did {famous} die?",
    "What did {famous} do?", "Tell me about {famous}.", "What did {famous} invent?",
    "What is {subject}?", "Explain {subject}.", "Can you explain {subject} to me?", "How does {subject} work?",
    "Tell me about {subject}.", "Why is {subject} important?", "Who invented {subject}?",
    "When was {event}?", "Who won {event}?", "What happened in {year}?", "Tell me about the history of {country}.",
    "How do you say {word} in {lang}?", "Do you speak {lang}?",
    "How do I write a program in {code}?", "How do I sort a list in {code}?", "How do I print in {code}?",
    "What is the weather today?", "What is the weather like in {city}?", "Will it rain tomorrow?", "What time is it?",
    "What day is it today?", "What is the date today?", "What year is it?", "Who won the game last night?",
    "How far is the moon?", "How old is the earth?", "How heavy is a whale?", "How tall is {famous}?",
    "How much does {subject} cost?", "What is the price of {subject}?", "Who wrote {subject}?",
    "What is the meaning of life?", "Why is the sky blue?", "Why do we dream?", "Is there life on Mars?",
    "How many stars are there?", "Where do I live?", "What did I eat today?", "What am I thinking?",
    "What is my phone number?", "How do I fix my computer?", "How do I cook {subject}?", "What is the news today?",
    "Who is the richest person in the world?", "What is the tallest mountain?", "What is the longest river?",
    "What is the speed of light?", "How many bones are in the body?", "What is the chemical formula of salt?",
    "Should I buy {subject}?", "What is the best movie?", "Who sings that song?", "What is {word}?",
    "What does {word} mean?", "Who is {Word}?", "Where is {Word}?", "What is {subject} in {lang}?",
    "What is the population of {city}?", "Give me a recipe for {subject}.", "Who discovered {subject}?",
    "What is the value of pi?", "Who is the best singer?", "How do airplanes fly?", "Why do people fight?",
    "What medicine should I take?", "Summarize the book about {famous}.", "Which is better, {code} or {code2}?",
    "Is {subject} dangerous?", "Is {famous} alive?", "Did {famous} live in {country}?",
]
RARE = ("zebra|hamster|walrus|lizard|dinosaur|whistleblower|computer|phone|volcano|planet|zombie|wizard|unicorn|"
        "crocodile|octopus|jellyfish|moose|vampire|ghost|toaster|guitar|piano|satellite|engine|laptop|"
        "salamander|mosquito|hippo|rhino|lawyer|banker|pirate|sandwich|pizza|cactus|rocket").split("|")


def rare(r: Rng) -> str:
    return made_up(r) if r.random() < 0.55 else r.choice(RARE)


# --------------------------------------------------------------------------- stories

class Story(NamedTuple):
    text: str
    name: str
    kind: str
    objects: tuple[str, ...]
    girl: bool


def person(r: Rng, girl: bool, fresh: float = 0.12) -> str:
    if r.random() < fresh:
        return cap(made_up(r))
    return r.choice(GIRLS if girl else BOYS)


START = ("[Once there was|Once upon a time, there was] a {trait} little {kind}. {His} name was {N}.",
         "[Once there was|There once was] a little {kind} named {N}. {N} was very {trait}.",
         "Once upon a time, there was a {trait} little {kind} named {N}.",
         "{N} was a {trait} little {kind} who lived near the {place}.")
CLOSE = ("{N} was very happy.", "{N} [felt happy|felt good|smiled] the whole day.", "It was a very good day.",
         "{N} went to bed with a big smile.", "{N} and {H} were friends from then on.",
         "And {N} never forgot that day.")


def _lost(r, f):
    return ["{N} had a {color} {obj}. {He} loved it very much.",
            "One {weather} day, {N} wanted to play with the {obj}, but it was gone!",
            "{N} was sad. {He} looked [under the bed|behind the door|in the grass], but it was not there.",
            "Then {H} the {hkind} came along. \"What is wrong, {N}?\" asked {H}.",
            "\"I cannot find my {obj},\" said {N}.", "\"Do not be sad. I will help you,\" said {H}.",
            "They looked [near|around|behind] the {place} together, and there it was!" if not f["obj2"] else
            "They looked everywhere together. At last {H} found it under a {obj2}!",
            "\"Thank you, {H}!\" said {N}.", "{N} learned that friends help each other."]


def _seed(r, f):
    return ["One day, {N} found a tiny seed near the {place}.", "\"What will it be?\" asked {N}.",
            "\"You must be patient,\" said {H} the {hkind}.",
            "{N} [put the seed in the ground|planted the seed] next to {his} {obj}. Every day {he} gave it water.",
            "{He} carried the water in a {obj2}." if f["obj2"] else "At first, nothing happened.",
            "{N} waited and waited. {He} did not give up.",
            "Then, one {weather} morning, a small green leaf came up!",
            "It grew and grew. Soon it was [a tall sunflower|a big pumpkin|a little apple tree].",
            "{N} learned that good things take time."]


def _broken(r, f):
    return ["{N} had a {color} {obj}.", "One day, the {obj} fell down. Crash! It was broken.",
            "{N} began to cry. \"My {obj}!\" {he} said.",
            "{H} the {hkind} heard {him} and came to help.", "\"We can fix it,\" said {H}.",
            "They used [glue|string|tape] and worked all day." if not f["obj2"] else
            "They took a piece of an old {obj2} and worked all day.",
            "At last, the {obj} was as good as new.", "\"Thank you,\" said {N}. \"You are a good friend.\"",
            "{N} learned that broken things can be mended."]


def _share(r, f):
    return ["{N} had a {color} {obj}. {H} the {hkind} had {a_obj2}.", "{H} wanted to play with the {obj} too.",
            "\"No! It is mine,\" said {N}. {H} was sad and went away.",
            "{N} played alone, but it was not fun.",
            "So {he} went to {H}. \"I am sorry. Let us share,\" said {N}.",
            "They played with the {obj} and the {obj2x} until the sun went down.",
            "{N} learned that sharing makes everything more fun."]


def _truth(r, f):
    return ["{N} liked to play with {his} {obj}.", "One day, {he} was not careful. Crash! The {obj} hit a {obj2v}, and it broke.",
            "{N} was worried. {He} could say that someone else did it.",
            "But {he} took a deep breath and went to {his} {parent}.",
            "\"I am sorry. I broke the {obj2v},\" said {N}.",
            "\"I am glad that you told me the truth,\" said {his} {parent}.",
            "Together they picked up the pieces.", "{N} learned that telling the truth is best."]


def _fear(r, f):
    return ["{N} was afraid of [the dark|the thunder|the deep water].",
            "One {weather} night, {he} could not sleep.", "{H} the {hkind} came with a {color} {obj}.",
            "\"Hold my {obj}. Then you will be brave,\" said {H}.",
            "{H} also gave {him} a {obj2}." if f["obj2"] else "{N} held it tight.",
            "{N} closed {his} eyes and took a deep breath. {He} was not afraid any more.",
            "\"Thank you, {H},\" said {N}.", "{N} learned that it is good to have a friend when you are afraid."]


def _friend(r, f):
    return ["{N} had no friends, and {he} was lonely.", "One {weather} day, {N} went to the {place}.",
            "A little {hkind} was there with a {color} {obj}.",
            "\"Hello! I am {N}. What is your name?\" said {N}.", "\"My name is {H},\" said the {hkind}.",
            "\"Can we play together?\" asked {N}. \"I would love to!\" said {H}.",
            "They played with the {obj} and a {obj2} all day." if f["obj2"] else "They played with the {obj} all day.",
            "When it got dark, they had to go home.", "\"See you tomorrow!\" said {H}.",
            "{N} learned that a new friend is easy to find if you say hello."]


def _storm(r, f):
    return ["One day, {N} and {H} the {hkind} were playing with {a_color_obj} near the {place}.",
            "Suddenly the sky turned dark, and it began to rain.",
            "\"Let us run!\" said {H}.", "They found a [cave|little house|big tree] and waited there.",
            "{N} had a {obj2}, and they looked at it together." if f["obj2"] else "They told each other stories.",
            "The wind took the {obj} away, but {N} ran and caught it.",
            "Soon the rain stopped, and there was a rainbow in the sky.", "\"Look!\" said {N}. \"How pretty!\"",
            "{N} learned that after the rain comes the sun."]


def _gift(r, f):
    return ["Tomorrow was {H}'s birthday. {H} was a {hkind} and {N}'s best friend.",
            "{N} wanted to give {H} a present, but {he} had no money.",
            "\"I can make something,\" {he} thought.", "{N} worked all day and made a {color} {obj}.",
            "{He} put it in a box with a {obj2}." if f["obj2"] else "{He} put it in a little box.",
            "{H} opened the box. \"A {obj}! It is the best present of all!\" said {H}.",
            "{N} learned that a present from the heart is the best."]


def _race(r, f):
    return ["One {weather} day, there was a race near the {place}. The prize was a {color} {obj}.",
            "{H} the {hkind} was very fast. {N} was slow.", "\"You will never win,\" said {H}.",
            "The race began. {H} ran fast, but then {hhe} stopped to [sleep|eat|play].",
            "{H} even stopped to look at a {obj2}." if f["obj2"] else "{N} did not stop.",
            "{N} went on, step by step, and won the race!", "{N} got the {obj}, and {he} shared it with {H}.",
            "{H} learned that slow and steady wins the race."]


def _found(r, f):
    return ["One day, {N} found a {color} {obj} near the {place}.", "\"Whose {obj} is this?\" {he} asked.",
            "{N} wanted to keep it. But then {he} saw {H} the {hkind}. {H} was crying.",
            "\"I lost my {obj},\" said {H}.", "{N} gave it back. \"Here it is,\" {he} said.",
            "{H} was so happy that {hhe} gave {N} a {obj2}." if f["obj2"] else "{H} was so happy that {hhe} danced.",
            "{N} learned that it feels good to be kind."]


def _try(r, f):
    return ["{N} wanted to learn to [swim|dance|sing|paint].", "{He} tried, but it was very hard.",
            "\"I cannot do it,\" said {N}. {He} threw {his} {color} {obj} on the ground.",
            "{H} the {hkind} smiled. \"Try again. I will help you,\" {hhe} said.",
            "{H} showed {him} how, and {N} used a {obj2} to practice." if f["obj2"] else "{N} tried again every day.",
            "After many days, {N} could do it very well!", "{His} {parent} gave {him} the {obj} back and hugged {him}.",
            "{N} learned that you must never give up."]


def _wish(r, f):
    return ["One night, {N} saw a bright star in the sky.", "\"I wish I had a {color} {obj},\" said {N}.",
            "The next morning, there was a box in front of the door.", "{N} opened it. It was a {color} {obj}!",
            "Under it, there was a {obj2} too." if f["obj2"] else "{N} could not believe it.",
            "But then {he} saw {H} the {hkind}, who had nothing to play with.",
            "\"You can play with me,\" said {N}.", "They played together until it was dark.",
            "{N} learned that the best wish is a wish you can share."]


def _help(r, f):
    return ["One {weather} day, {N} walked to the {place} with a {color} {obj}.",
            "{He} heard a small voice. \"Help! Help!\"", "It was {H} the {hkind}. {H} was stuck in the mud.",
            "{N} held out the {obj}, and {H} took it.",
            "{N} also put a {obj2} on the mud." if f["obj2"] else "{N} pulled and pulled.",
            "Pop! {H} was free.", "\"You are my hero,\" said {H}.", "{N} learned that even small ones can help."]


PLOTS: list[Callable] = [_lost, _seed, _broken, _share, _truth, _fear, _friend, _storm, _gift, _race, _found, _try,
                         _wish, _help]
HUMAN = {"girl", "boy"}


def is_she(pet: str) -> bool:
    """A pet's name says whether it is a she."""
    return PETS.index(pet) % 2 == 1


def partners(kind: str) -> list[str]:
    """The usual helpers of a hero: a greedy decoder, to whom all are equally likely, would name the hero again."""
    i = KINDS.index(kind) if kind in KINDS else len(kind)
    return [KINDS[(i + step) % len(KINDS)] for step in (5, 12)]


def helper_name(kind: str, hero: str) -> str:
    """The usual name of a helper of this kind."""
    i = KINDS.index(kind) if kind in KINDS else len(kind)
    name = PETS[i % len(PETS)]
    return name if name != hero else PETS[(i + 7) % len(PETS)]


def story(r: Rng, kind: str | None = None, name: str | None = None, objects: tuple[str, ...] | None = None,
          girl: bool | None = None, helper: str | None = None, plot: Callable | None = None) -> Story:
    if kind is None:
        kind = r.choice(["girl", "boy"]) if r.random() < 0.35 else (rare(r) if r.random() < 0.06 else r.choice(KINDS))
    if name is None and kind not in HUMAN:
        name = cap(made_up(r)) if r.random() < 0.15 else r.choice(PETS)
    if girl is None:
        girl = kind == "girl" or (kind != "boy" and (is_she(name) if name in PETS else r.random() < 0.5))
    if name is None:
        name = person(r, girl)
    hkind = helper or (r.choice(partners(kind)) if r.random() < 0.75 else r.choice([k for k in KINDS if k != kind]))
    hname = helper_name(hkind, name) if r.random() < 0.8 else name
    while hname == name:
        hname = cap(made_up(r)) if r.random() < 0.3 else r.choice(PETS)
    hgirl = is_she(hname) if hname in PETS else r.random() < 0.5
    if objects is None:
        objects = (r.choice(OBJECTS),) if r.random() < 0.6 else tuple(r.sample(OBJECTS, 2))
    obj, obj2 = objects[0], (objects[1] if len(objects) > 1 else "")
    color = r.choice(COLORS)
    f = dict(N=name, kind=kind, he="she" if girl else "he", him="her" if girl else "him", his="her" if girl else "his",
             He="She" if girl else "He", His="Her" if girl else "His", H=hname, hkind=hkind,
             hhe="she" if hgirl else "he", obj=obj, obj2=obj2, a_obj2=an(obj2) if obj2 else "a toy",
             obj2x=obj2 or "toy", obj2v=obj2 or "vase", color=color, a_color_obj=an(color) + " " + obj,
             place=r.choice(PLACES), weather=r.choice(("sunny", "rainy", "windy", "snowy", "warm")),
             trait=r.choice("brave kind clever careful curious friendly cheerful shy".split()),
             parent=r.choice("mother father grandma grandpa".split()))
    plot = plot or r.choice(PLOTS)
    if helper:
        while plot in (_truth,):
            plot = r.choice(PLOTS)
    parts = [r.choice(START)] + plot(r, f) + ([r.choice(CLOSE)] if r.random() < 0.6 else [])
    if plot is _truth and "{H}" in parts[-1]:
        parts[-1] = CLOSE[0]
    text = say(r, " ".join(parts), **f)
    return Story(articles(text), name, kind, objects, girl)


def tiny_story(r: Rng, kind: str | None = None) -> str:
    kind = kind or r.choice(KINDS)
    name, obj, color = r.choice(PETS), r.choice(OBJECTS), r.choice(COLORS)
    t = say(r, r.choice((
        "Once there was {a} named {N}. {N} found {c} {o} and gave it to a friend. They were both happy.",
        "{N} was a little {k}. One day, {N} lost {c} {o}. A friend found it. What a good day!",
        "A little {k} named {N} wanted {c} {o}. {N} worked hard and got it. {N} was very happy.")),
        a=an("little " + kind), N=name, k=kind, c=an(color), o=obj)
    return t


# --------------------------------------------------------------------------- chat topics

class Turn(NamedTuple):
    user: str
    answer: str
    key: str | None = None   # a word that every right answer contains; None for open questions
    topic: str = ""
    verb: str = ""           # "", or an elliptic form of the question: "And a dog?"


NAME_ANSWERS = "I am Sprout, a very small language model."
DONT = "I do not know that."


def t_hello(r):
    u = say(r, "[Hello|Hi|Hey|Hello there|Hi there|Good morning|Good evening|Good afternoon|Hi Sprout|Hello Sprout|Hey there][!|.|]")
    g = "Good morning" if "morning" in u else "Good evening" if "evening" in u else "Good afternoon" if "afternoon" in u \
        else r.choice(["Hello", "Hi"])
    return Turn(u, say(r, g + "! [How are you today?|What would you like to talk about?|How can I help you?|It is nice to see you.]"),
                g.split()[-1].lower() if " " in g else None)


def t_how(r):
    return Turn(say(r, "[How are you?|How are you today?|How do you do?|How is it going?|Are you well?|how are you doing?]"),
                say(r, "I am [well|fine|happy], thank you! [How are you?|And you?]"), "thank")


def t_fine(r):
    return Turn(say(r, "[I am fine|I am well|I am good|I'm fine|I'm good][, thank you|, thanks|][.|!|]"),
                say(r, "[I am glad to hear that|That is good to hear]! [What would you like to talk about?|Would you like to hear a story?]"))


def t_whoami(r):
    return Turn(say(r, "[Who are you?|What is your name?|What are you called?|What's your name?|Tell me your name.|Do you have a name?|who are you|your name?|What are you?]"),
                say(r, "[I am Sprout, a very small language model.|My name is Sprout. I am a very small language model.] [I run in Shohin.|I can tell stories and answer simple questions.|]").strip(), "sprout")


def t_can(r):
    return Turn(say(r, "[What can you do?|How can you help me?|What can I ask you?|What do you know?|Help!|Help|What are you good at?|Who are you and what can you do?]"),
                say(r, "I can tell short stories, answer simple questions and add small numbers. [Just ask me!|Try asking for a story about a cat.|You can also tell me your name.]"), "stories")


def t_about(r):
    q, a, k = r.choice([
        ("[What is Shohin?|Tell me about Shohin.|what is shohin]", "Shohin is a small program that runs very small language models like me. It is written in Rust.", "program"),
        ("[Who made you?|Who trained you?|Who built you?]", "I was trained by the people who write Shohin, on text from a small program.", "shohin"),
        ("[How big are you?|Are you big?|How small are you?|How many parameters do you have?]", "I am very small. My weights need only a bit or two each.", "small"),
        ("[Where do you run?|Where do you live?|Where are you?]", "I run in Shohin, on your own machine.", "shohin"),
        ("[Are you a robot?|Are you a person?|Are you human?|Are you alive?|Are you real?]", "No, I am only a very small language model.", "no"),
        ("[How old are you?|When were you born?]", "I do not have an age. I am a language model.", "age"),
        ("[What is your favorite color?|Which color do you like?|Do you have a favorite color?]", "My favorite color is green, like a leaf.", "green"),
        ("[What is your favorite animal?|Which animal do you like?]", "I like the fox best. It is clever.", "fox"),
        ("[Are you smart?|Are you clever?|Do you know everything?]", "No, I am very small, and I know only a few things.", "few"),
        ("[Do you need the internet?|Are you online?|Do you send my data?]", "No, I run on your own machine.", "no"),
        ("[What is a language model?|What does a language model do?]", "A language model is a program that writes the next word, again and again.", "word"),
        ("[Do you sleep?|Do you eat?|Do you get tired?]", "No, I am a program. I am always here.", "no"),
        ("[What language do you speak?|Which language do you speak?]", "I speak a little English.", "english"),
        ("[Can you think?|Do you have feelings?]", "I do not think so. I only write one word after the other.", "word"),
        ("[Why are you called Sprout?|Why is your name Sprout?]", "A sprout is a very small plant, and I am a very small model.", "small"),
        ("[What are your weights?|What is inside you?]", "My weights are tiny numbers of a bit or two.", "weights"),
    ])
    return Turn(say(r, q), a, k)


def t_thanks(r):
    return Turn(say(r, "[Thank you|Thanks|Thank you very much|Thanks a lot|Thank you, Sprout][!|.|]"),
                say(r, "[You are welcome!|You are very welcome!]"), "welcome")


def t_bye(r):
    return Turn(say(r, "[Bye|Goodbye|Good night|See you later|Bye bye|See you tomorrow|I have to go now][!|.|]"),
                say(r, "[Goodbye! Have a nice day!|Goodbye! Come back soon!|Goodbye! It was nice to talk with you.]"), "goodbye")


def sum_text(r, a, b, op="plus"):
    s = a + b if op == "plus" else a - b
    if r.random() < 0.15:
        return NUMBERS[a], NUMBERS[b], NUMBERS[s]
    return str(a), str(b), str(s)


def t_add(r):
    a, b = r.randint(0, 10), r.randint(0, 10)
    if r.random() < 0.3:
        a = r.randint(0, 20)
        b = r.randint(0, 20 - a)
    x, y, s = sum_text(r, a, b)
    q = say(r, "[What is {x} plus {y}?|What is {x} plus {y}?|What is {x} and {y}?|How much is {x} plus {y}?|What's {x} plus {y}?|{x} plus {y}?|{x} + {y}|{x}+{y}|{x} + {y} =|What is {x} + {y}?|What is {x}+{y}?|Add {x} and {y}.|Can you add {x} and {y}?]", x=x, y=y)
    return Turn(q, cap(f"{x} plus {y} is {s}."), s, verb=say(r, "[And|What about] {x} plus {y}?", x=x, y=y))


def t_sub(r):
    b = r.randint(0, 10)
    a = b + r.randint(0, 10)
    if r.random() < 0.3:
        a = r.randint(0, 20)
        b = r.randint(0, a)
    x, y, s = sum_text(r, a, b, "minus")
    q = say(r, "[What is {x} minus {y}?|What is {x} minus {y}?|How much is {x} minus {y}?|What's {x} minus {y}?|{x} minus {y}?|{x} - {y}|{x}-{y}|{x} - {y} =|What is {x} - {y}?|Take {y} from {x}.]", x=x, y=y)
    return Turn(q, cap(f"{x} minus {y} is {s}."), s, verb=say(r, "[And|What about] {x} minus {y}?", x=x, y=y))


def t_bigsum(r):
    """Beyond the numbers up to 20, and beyond plus and minus."""
    op = r.choice(["plus", "minus", "times", "+", "-", "*", "x", "divided by", "/"])
    m = r.random()
    if op in ("plus", "+", "minus", "-"):
        if m < 0.5:
            a, b = r.randint(21, 9999), r.randint(11, 9999)
        elif m < 0.75:
            a, b = r.randint(21, 99), r.randint(1, 99)
        else:
            a = r.randint(2, 20)
            b = r.randint(21 - a, 20) if op in ("plus", "+") else r.randint(a + 1, 30)
    else:
        a, b = (r.randint(0, 30), r.randint(1, 30)) if m < 0.6 else (r.randint(21, 9999), r.randint(2, 999))
    q = say(r, "[What is {a} {op} {b}?|{a} {op} {b}|How much is {a} {op} {b}?|{a} {op} {b}?]", a=str(a), b=str(b), op=op)
    return Turn(q, say(r, DONT + " [I can only add and subtract small numbers.|I can only work with small numbers.]"), "do not know")


def t_bignumber(r):
    q = say(r, r.choice(["What is the square root of {a}?", "Count to {b}.", "What is {a} percent of {b}?", "Is {b} a prime number?",
                         "What is {a} to the power of {b}?", "How many seconds are in {a} hours?"]),
            a=str(r.randint(21, 999)), b=str(r.randint(21, 9999)))
    return Turn(q, say(r, DONT + " [I can only add and subtract small numbers.|I can only work with small numbers.]"), "do not know")


THINGS = "apple pear ball book cookie flower stone pencil star egg kite coin shell cup".split()


def t_wordsum(r):
    who = person(r, r.random() < 0.5, 0.3)
    o = r.choice(THINGS)
    os = plural(o)
    if r.random() < 0.5:
        a, b = r.randint(1, 9), r.randint(1, 9)
        s = a + b
        q = say(r, "{N} has {a} {oa}. {N} [gets|finds|buys] {b} more. How many {os} does {N} have[ now|]?", N=who, a=str(a), b=str(b), oa=os if a > 1 else o, os=os)
    else:
        b = r.randint(1, 9)
        s = r.randint(0, 9)
        a = b + s
        q = say(r, "{N} has {a} {oa}. {N} [loses|gives away|eats] {b}. How many {os} does {N} have[ now|]?".replace("|eats", "" if o not in ("apple", "pear", "cookie", "egg") else "|eats"),
                N=who, a=str(a), b=str(b), oa=os if a > 1 else o, os=os)
    return Turn(q, f"{who} has {s} {os if s != 1 else o}.", str(s))


def t_double(r):
    n = r.randint(0, 10)
    return Turn(say(r, "[What is double {n}?|What is twice {n}?|Double {n}.]", n=str(n)), f"Double {n} is {2 * n}.", str(2 * n))


def t_compare_numbers(r):
    a, b = r.sample(range(0, 21), 2)
    if r.random() < 0.5:
        w, s = r.choice(["bigger", "larger"]), max(a, b)
    else:
        w, s = "smaller", min(a, b)
    return Turn(say(r, "[Which|Which number|What] is {w}, {a} or {b}?", w=w, a=str(a), b=str(b)), f"{s} is {w}.", str(s))


def t_count(r):
    m = r.random()
    if m < 0.35:
        n = r.randint(2, 20) if r.random() < 0.5 else r.randint(3, 10)
        return Turn(say(r, "[Count to {n}.|Can you count to {n}?|Please count to {n}.|Count from 1 to {n}.]", n=r.choice([str(n), NUMBERS[n]])),
                    cap(", ".join(NUMBERS[1:n + 1])) + ".", ", ".join(NUMBERS[1:n + 1]))
    if m < 0.45:
        n = r.randint(3, 10)
        s = ", ".join(NUMBERS[n:0:-1])
        return Turn(say(r, "[Count backwards from {n}.|Count down from {n}.]", n=r.choice([str(n), NUMBERS[n]])), cap(s) + ".", s)
    if m < 0.55:
        a = r.randint(0, 12)
        b = a + r.randint(2, 6)
        s = ", ".join(NUMBERS[a:b + 1])
        return Turn(f"Count from {a} to {b}.", cap(s) + ".", s)
    n = r.randint(0, 19)
    if r.random() < 0.5:
        return Turn(say(r, "[What|Which number] comes after {n}?", n=str(n)), f"After {n} comes {n + 1}.", str(n + 1), verb=f"And after {n}?")
    n += 1
    return Turn(say(r, "[What|Which number] comes before {n}?", n=str(n)), f"Before {n} comes {n - 1}.", str(n - 1), verb=f"And before {n}?")


def t_even(r):
    n = r.randint(0, 20)
    w = "even" if n % 2 == 0 else "odd"
    return Turn(say(r, "[Is {n} even or odd?|Is {n} odd or even?]", n=str(n)), f"{n} is {w}.", w)


def t_opposite(r):
    a, b = r.choice(OPPOSITES)
    if r.random() < 0.5 and sum(b in p for p in OPPOSITES) == 1:
        a, b = b, a
    if sum(a in p for p in OPPOSITES) > 1:  # light, short, right ...: ask the other way round
        if sum(b in p for p in OPPOSITES) == 1:
            a, b = b, a
    return Turn(say(r, "[What is the opposite of {a}?|What's the opposite of {a}?|Tell me the opposite of {a}.|Opposite of {a}?|The opposite of {a}?]", a=a),
                f"The opposite of {a} is {b}." if sum(a in p for p in OPPOSITES) == 1 else f"The opposite of {a} is {AMBIGUOUS[a]}.",
                b if sum(a in p for p in OPPOSITES) == 1 else AMBIGUOUS[a], verb=f"And of {a}?")


AMBIGUOUS = {"old": "young", "short": "tall", "light": "dark", "right": "left", "white": "black", "black": "white"}


def t_opposite_unknown(r):
    w = rare(r)
    return Turn(say(r, "[What is the opposite of {a}?|What's the opposite of {a}?|Opposite of {a}?]", a=w), f"I do not know the opposite of {w}.", "do not know")


def the_animal(r, table, fmt_q, fmt_a, elliptic=True):
    a = r.choice(list(table))
    return a, say(r, fmt_q, a=an(a), A=plural(a), n=a), say(r, fmt_a, a=cap(an(a)), A=plural(a), n=a, v=str(table[a]))


def t_sound(r):
    a, q, ans = the_animal(r, SOUND, "[What does {a} say?|What does {a} say?|What sound does {a} make?|What noise does {a} make?|What does the {n} say?|How does {a} sound?]", "{a} says {v}.")
    return Turn(q, ans, SOUND[a], verb=say(r, "[And {a}?|What about {a}?|And the {n}?]", a=an(a), n=a))


def t_home(r):
    a, q, ans = the_animal(r, HOME, "[Where does {a} live?|Where do {A} live?|Where is the home of {a}?|Where can I find {a}?]", "{a} lives {v}.")
    return Turn(q, ans, HOME[a].split()[-1], verb=say(r, "[And {a}?|What about {a}?]", a=an(a)))


def t_young(r):
    a, q, ans = the_animal(r, YOUNG, "[What is a baby {n} called?|What do you call a baby {n}?|What is the young of {a} called?]", "A baby {n} is called {v}.")
    y = YOUNG[a]
    return Turn(q, f"A baby {a} is called {an(y)}.", y, verb=f"And a baby {a}?")


def t_eats(r):
    a, q, ans = the_animal(r, EATS, "[What does {a} eat?|What do {A} eat?|What does {a} like to eat?|What do {A} like to eat?]", "{a} eats {v}.")
    return Turn(q, ans, EATS[a], verb=say(r, "[And {a}?|What about {a}?]", a=an(a)))


def t_legs(r):
    a, q, ans = the_animal(r, LEGS, "[How many legs does {a} have?|How many legs do {A} have?]", "{a} has {v} legs.")
    if LEGS[a] == 0:
        return Turn(q, cap(an(a)) + " has no legs.", "no", verb=f"And {an(a)}?")
    return Turn(q, ans, str(LEGS[a]), verb=f"And {an(a)}?")


def t_able(r):
    verb, table = r.choice([("fly", FLIES), ("swim", SWIMS)])
    a = r.choice(list(table))
    q = say(r, "[Can {a} {v}?|Can {A} {v}?|Is {a} able to {v}?]", a=an(a), A=plural(a), v=verb)
    return Turn(q, f"Yes, {an(a)} can {verb}." if table[a] else f"No, {an(a)} cannot {verb}.", "yes" if table[a] else "no",
                verb=f"And {an(a)}?" if q.startswith("Can") else "")


def t_animal_unknown(r):
    w = rare(r)
    q, a = r.choice([("What does {a} say?", "I do not know what {a} says."), ("Where does {a} live?", "I do not know where {a} lives."),
                     ("What does {a} eat?", "I do not know what {a} eats."), ("What color is {a}?", "I do not know what color {a} is."),
                     ("How many legs does {a} have?", "I do not know how many legs {a} has."), ("Can {a} fly?", "I do not know if {a} can fly."),
                     ("What is {a}?", "I do not know what {a} is."), ("What is {a} made of?", "I do not know what {a} is made of."),
                     ("What is a baby {w} called?", "I do not know what a baby {w} is called."),
                     ("Tell me about {ws}.", "I do not know anything about {ws}."), ("What do {ws} eat?", "I do not know what {ws} eat.")])
    return Turn(q.format(a=an(w), w=w, ws=plural(w)), a.format(a=an(w), w=w, ws=plural(w)), "do not know")


def t_animal(r):
    a = r.choice([k for k in SOUND if k in EATS and k in HOME])
    return Turn(say(r, "[Tell me about {A}.|Tell me something about {A}.|What do you know about {A}?|Tell me about the {a}.]", A=plural(a), a=a),
                f"{cap(an(a))} says {SOUND[a]}. It eats {EATS[a]}, and it lives {HOME[a]}.", EATS[a])


def t_color(r):
    if r.random() < 0.65:
        a = r.choice(list(COLOR_OF))
        q = say(r, "[What color is {a}?|What color is {a}?|Which color is {a}?|What color are {A}?|What colour is {a}?|What is the color of {a}?]", a=an(a), A=plural(a))
        return Turn(q, f"{cap(an(a))} is {COLOR_OF[a]}.", COLOR_OF[a], verb=say(r, "[And {a}?|What about {a}?]", a=an(a)))
    a = r.choice(list(COLOR_OF_MASS))
    q = say(r, "[What color is {a}?|Which color is {a}?|What colour is {a}?|What is the color of {a}?]", a=a)
    return Turn(q, f"{cap(a)} is {COLOR_OF_MASS[a]}.", COLOR_OF_MASS[a], verb=say(r, "[And {a}?|What about {a}?]", a=a))


def t_mix(r):
    (a, b), c = r.choice(list(MIXES.items()))
    if r.random() < 0.5:
        a, b = b, a
    return Turn(say(r, "[What do you get if you mix {a} and {b}?|What color do {a} and {b} make?|Mix {a} and {b}.|What is {a} and {b} mixed?]", a=a, b=b), f"{cap(a)} and {b} make {c}.", c)


def t_color_things(r):
    c = r.choice(["red", "green", "yellow", "white", "orange", "brown", "black"])
    things = [k for k, v in COLOR_OF.items() if v == c] + [k for k, v in COLOR_OF_MASS.items() if v == c and not k.startswith("the ")]
    t = r.choice(things)
    m = t in COLOR_OF_MASS
    return Turn(say(r, "[Name something {c}.|Tell me something {c}.|What is {c}?|Name a thing that is {c}.]", c=c), cap(f"{t if m else an(t)} is {c}."), None)


def t_is_color(r):
    a = r.choice(list(COLOR_OF))
    c = COLOR_OF[a] if r.random() < 0.5 else r.choice(COLORS)
    return Turn(f"Is {an(a)} {c}?", f"Yes, {an(a)} is {c}." if c == COLOR_OF[a] else f"No, {an(a)} is {COLOR_OF[a]}.",
                "yes" if c == COLOR_OF[a] else COLOR_OF[a])


def noun(w):
    return w if w in MASS else an(w)


def t_category(r):
    c = r.choice(list(CATEGORY))
    m = r.random()
    if m < 0.4:
        n = r.choice([2, 3, 3, 3, 4])
        items = r.sample(CATEGORY[c], n)
        items = [w if w in MASS else plural(w) for w in items]
        return Turn(say(r, "[Name {n} {C}.|Tell me {n} {C}.|Can you name {n} {C}?|List {n} {C}.|Give me {n} {C}.]", n=r.choice([NUMBERS[n], NUMBERS[n], str(n)]), C=plural(c)),
                    f"{cap(NUMBERS[n])} {plural(c)} are {listing(items)}.", f"{NUMBERS[n]} {plural(c)}")
    if m < 0.5:
        w = r.choice(CATEGORY[c])
        return Turn(say(r, "[Name {c}.|Tell me the name of {c}.]", c=an(c)), f"{cap(noun(w))} is {an(c)}." if c not in ("color", "day") else f"{cap(w)} is {an(c)}.", an(c))
    w = r.choice(CATEGORY[c])
    if m < 0.7:
        return Turn(say(r, "[What is {w}?|What kind of thing is {w}?|What's {w}?]", w=noun(w)), f"{cap(noun(w))} is {an(c)}.", c, verb=f"And {noun(w)}?")
    d = c if r.random() < 0.5 else r.choice([k for k in CATEGORY if w not in CATEGORY[k] and not (k == "animal" and c in ("bird", "insect"))])
    return Turn(say(r, "Is {w} {c}?", w=noun(w), c=an(d)), f"Yes, {noun(w)} is {an(c)}." if c == d else f"No, {noun(w)} is {an(c)}.", "yes" if c == d else c)


def t_bigger(r):
    (i, a), (j, b) = r.sample(list(enumerate(SIZE)), 2)
    up = r.random() < 0.6
    w = "bigger" if up else "smaller"
    s = a if (i > j) == up else b
    return Turn(say(r, "[Which is {w}, {a} or {b}?|What is {w}, {a} or {b}?|Who is {w}, {a} or {b}?]", w=w, a=an(a), b=an(b)), f"{cap(an(s))} is {w}.", s)


def t_faster(r):
    (i, a), (j, b) = r.sample(list(enumerate(SPEED)), 2)
    up = r.random() < 0.6
    w = "faster" if up else "slower"
    s = a if (i > j) == up else b
    return Turn(say(r, "[Which is {w}, {a} or {b}?|What is {w}, {a} or {b}?|Who is {w}, {a} or {b}?]", w=w, a=an(a), b=an(b)), f"{cap(an(s))} is {w}.", s)


def t_day(r):
    m = r.random()
    i = r.randrange(7)
    if m < 0.35:
        return Turn(say(r, "[Which day comes after {d}?|What day comes after {d}?|What day is after {d}?|What comes after {d}?]", d=DAYS[i]), f"After {DAYS[i]} comes {DAYS[(i + 1) % 7]}.", DAYS[(i + 1) % 7], verb=f"And after {DAYS[i]}?")
    if m < 0.65:
        return Turn(say(r, "[Which day comes before {d}?|What day comes before {d}?|What day is before {d}?|What comes before {d}?]", d=DAYS[i]), f"Before {DAYS[i]} comes {DAYS[i - 1]}.", DAYS[i - 1], verb=f"And before {DAYS[i]}?")
    if m < 0.8:
        if r.random() < 0.5:
            return Turn(say(r, "[Today is {d}. What day is tomorrow?|If today is {d}, what day is tomorrow?]", d=DAYS[i]), f"Tomorrow is {DAYS[(i + 1) % 7]}.", DAYS[(i + 1) % 7])
        return Turn(say(r, "[Today is {d}. What day was yesterday?|If today is {d}, what day was yesterday?]", d=DAYS[i]), f"Yesterday was {DAYS[i - 1]}.", DAYS[i - 1])
    if m < 0.9:
        return Turn(say(r, "[Name the days of the week.|What are the days of the week?|Tell me the days of the week.]"), "The days of the week are " + listing(DAYS) + ".", listing(DAYS))
    q, a, k = r.choice([("[How many days are in a week?|How many days does a week have?]", "A week has 7 days.", "7"),
                        ("[What is the first day of the week?|Which day is the first day of the week?]", "The first day of the week is Monday.", "Monday"),
                        ("[What is the last day of the week?|Which day is the last day of the week?]", "The last day of the week is Sunday.", "Sunday"),
                        ("[Which days are the weekend?|When is the weekend?]", "The weekend is Saturday and Sunday.", "Sunday")])
    return Turn(say(r, q), a, k)


def t_month(r):
    m = r.random()
    i = r.randrange(12)
    M = MONTHS
    if m < 0.35:
        return Turn(say(r, "[Which month comes after {d}?|What month comes after {d}?|What month is after {d}?|What comes after {d}?]", d=M[i]), f"After {M[i]} comes {M[(i + 1) % 12]}.", M[(i + 1) % 12], verb=f"And after {M[i]}?")
    if m < 0.6:
        return Turn(say(r, "[Which month comes before {d}?|What month comes before {d}?|What month is before {d}?|What comes before {d}?]", d=M[i]), f"Before {M[i]} comes {M[i - 1]}.", M[i - 1], verb=f"And before {M[i]}?")
    if m < 0.72:
        return Turn(say(r, "[How many days does {d} have?|How many days are in {d}?]", d=M[i]), f"{M[i]} has {MONTH_DAYS[i]} days.", str(MONTH_DAYS[i]), verb=f"And {M[i]}?")
    if m < 0.82:
        return Turn(say(r, "[Which season is {d} in?|In which season is {d}?|What season is {d} in?]", d=M[i]), f"{M[i]} is in {SEASON_OF[i]}.", SEASON_OF[i], verb=f"And {M[i]}?")
    if m < 0.88:
        return Turn(say(r, "[Name the months of the year.|What are the months of the year?|Tell me the months.]"), "The months are " + listing(M) + ".", listing(M))
    q, a, k = r.choice([("[How many months are in a year?|How many months does a year have?]", "A year has 12 months.", "12"),
                        ("[What is the first month of the year?|Which month is the first?]", "The first month is January.", "January"),
                        ("[What is the last month of the year?|Which month is the last?]", "The last month is December.", "December"),
                        ("[How many seasons are there?|How many seasons does a year have?]", "There are 4 seasons.", "4"),
                        ("[Name the seasons.|What are the seasons?|What are the four seasons?]", "The seasons are " + listing(SEASONS) + ".", listing(SEASONS)),
                        ("[When does it snow?|In which season does it snow?]", "It snows in winter.", "winter"),
                        ("[What is the warmest season?|Which season is the warmest?]", "The warmest season is summer.", "summer"),
                        ("[What comes after spring?|Which season comes after spring?]", "After spring comes summer.", "summer"),
                        ("[What comes after summer?|Which season comes after summer?]", "After summer comes autumn.", "autumn"),
                        ("[What comes after autumn?|Which season comes after autumn?]", "After autumn comes winter.", "winter"),
                        ("[What comes after winter?|Which season comes after winter?]", "After winter comes spring.", "spring"),
                        ("[How many hours are in a day?|How many hours does a day have?]", "A day has 24 hours.", "24")])
    return Turn(say(r, q), a, k)


def t_spell(r):
    w = r.choice(SPELL)
    s = "-".join(w.upper())
    m = r.random()
    if m < 0.6:
        return Turn(say(r, "[How do you spell {w}?|Spell {w}.|Spell the word {w}.|Can you spell {w}?|How is {w} spelled?]", w=w), f"{cap(w)} is spelled {s}.", s, verb=f"And {w}?")
    if m < 0.8:
        return Turn(say(r, "[What letter does {w} start with?|What is the first letter of {w}?]", w=w), f"{cap(w)} starts with {w[0].upper()}.", w[0].upper())
    if m < 0.9:
        return Turn(say(r, "[How many letters are in {w}?|How many letters does {w} have?]", w=w), f"{cap(w)} has {len(w)} letters.", str(len(w)))
    i = r.randrange(25)
    al = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return Turn(say(r, "[What|Which] letter comes after {a}?", a=al[i]), f"After {al[i]} comes {al[i + 1]}.", al[i + 1])


def t_alphabet(r):
    return Turn(say(r, "[Say the alphabet.|Tell me the alphabet.|What is the alphabet?]"), ", ".join("ABCDEFGHIJKLMNOPQRSTUVWXYZ") + ".", "Z")


def t_rhyme(r):
    w = r.choice(list(RHYMES))
    v = RHYMES[w]
    back = {b: a for a, b in RHYMES.items()}
    if r.random() < 0.4 and v not in RHYMES and list(RHYMES.values()).count(v) == 1:
        w, v = v, back[v]
    return Turn(say(r, "[What rhymes with {w}?|Tell me a word that rhymes with {w}.|Which word rhymes with {w}?]", w=w), f"{cap(v)} rhymes with {w}.", v, verb=f"And with {w}?")


def t_body(r):
    if r.random() < 0.6:
        v = r.choice(list(BODY))
        b = BODY[v]
        return Turn(say(r, "[What do you {v} with?|What do we {v} with?|What do I {v} with?]", v=v), f"You {v} with your {b}.", b, verb=f"And what do you {v} with?")
    b = r.choice(list(BODY_COUNT))
    n = BODY_COUNT[b]
    return Turn(say(r, "[How many {b} do I have?|How many {b} do you have on your body?|How many {b} does a person have?]", b=b), f"A person has {n} {b if n > 1 else b[:-1]}.", str(n))


def t_use(r):
    u = r.choice(list(USES))
    if r.random() < 0.75:
        return Turn(say(r, "[What do I need to {u}?|What do I use to {u}?|What can I use to {u}?]", u=u), f"You need {USES[u]} to {u.replace('my ', 'your ')}.", USES[u].split()[-1])
    t = USES[u]
    s = "are" if t == "scissors" else "is"
    return Turn(f"What {s} {t} for?", f"You use {t} to {u.replace('my ', 'your ')}.", u.split()[0])


def t_made(r):
    a = r.choice(list(MADE_OF))
    if r.random() < 0.8:
        return Turn(say(r, "[What is {a} made of?|What are {A} made of?]", a=an(a), A=plural(a) if " " not in a else "castles on the beach"), f"{cap(an(a))} is made of {MADE_OF[a]}.", MADE_OF[a], verb=f"And {an(a)}?")
    g = r.choice(list(GIVES))
    return Turn(say(r, "[Where does {g} come from?|Who gives us {g}?|Which animal gives us {g}?]" if g != "eggs" else "[Where do eggs come from?|Who gives us eggs?|Which animal gives us eggs?]", g=g), f"{cap(g)} {'come' if g == 'eggs' else 'comes'} from {GIVES[g]}.", GIVES[g].split()[-1])


def t_truth(r):
    q = r.choice(list(TRUTHS))
    return Turn(q, *TRUTHS[q])


def t_plural(r):
    w = r.choice([k for k in IRREGULAR if k != "ostrich"] + THINGS + ["cat", "dog", "cow", "tree"])
    return Turn(say(r, "[What is the plural of {w}?|What do you call more than one {w}?|One {w}, two what?]", w=w), f"The plural of {w} is {plural(w)}.", plural(w), verb=f"And of {w}?")


def t_joke(r):
    return Turn(say(r, "[Tell me a joke.|Do you know a joke?|Make me laugh.|Tell me something funny.|A joke, please.|Can you tell me a joke?|tell me another joke]"), r.choice(JOKES), "?|!|.")


def t_poem(r):
    k = r.choice(list(POEMS))
    m = r.random()
    q = say(r, "[Write|Tell me|Say] a poem about {k}.", k=k) if m < 0.75 else say(r, "[Write a poem.|Tell me a poem.|Do you know a poem?|Sing a song.|Can you sing?]")
    return Turn(q, POEMS[k], None)


FEEL = {"sad": ("Oh, I am sorry that you are sad.", "sorry"), "happy": ("That is wonderful! I am glad.", "glad"),
        "tired": ("Then you should rest a little.", "rest"), "bored": ("Then let us do something fun.", "fun"),
        "scared": ("Do not be afraid. I am here.", "afraid"), "angry": ("I am sorry. Take a deep breath.", "breath"),
        "sick": ("I am sorry. I hope you feel better soon.", "better"), "hungry": ("Then you should eat something.", "eat"),
        "thirsty": ("Then you should drink some water.", "drink"), "excited": ("How nice! Tell me more.", "nice"),
        "lonely": ("I am here. We can talk.", "talk"), "cold": ("Then you should put on a warm sweater.", "warm"),
        "hot": ("Then you should drink some cold water.", "water"), "proud": ("Well done! You can be proud.", "proud"),
        "sleepy": ("Then you should go to bed. Good night!", "bed"), "worried": ("Do not worry. It will be fine.", "worry")}


def t_feel(r):
    k = r.choice(list(FEEL))
    a, key = FEEL[k]
    q = say(r, "[I am {k}|I'm {k}|I feel {k}|I am very {k}|I am so {k}|I feel {k} today][.|.|!|]", k=k)
    return Turn(q, a + (say(r, " [Would you like to hear a story?|Would you like to hear a joke?]") if k in ("sad", "bored", "lonely", "angry") else ""), key)


def t_like(r):
    k = plural(r.choice([a for a in KINDS if a not in ("robot", "dragon")] + ["apple", "flower", "tree", "book", "kite"]))
    return Turn(say(r, "[Do you like {k}?|Do you love {k}?]", k=k), say(r, "Yes, I like {k}. [Do you like them too?|They are nice.]", k=k), k)


def t_user_likes(r):
    k = plural(rare(r)) if r.random() < 0.3 else plural(r.choice(KINDS + THINGS))
    return Turn(say(r, "[I like {k}|I love {k}|I really like {k}|My favorite things are {k}][.|!|]", k=k), say(r, "[I like {k} too!|How nice! I like {k} too.]", k=k), k)


def t_day_told(r):
    return Turn(say(r, "[I went to the {p} today|I was at the {p}|I am going to the {p}|We played at the {p}][.|!|]", p=r.choice(PLACES)), say(r, "[That sounds nice! Did you have fun?|How nice! I hope it was fun.]"))


def fill_unknown(r, template):
    w = rare(r)
    c1, c2 = r.sample(CODE, 2)
    return template.format(country=r.choice(COUNTRIES) if r.random() < 0.75 else cap(made_up(r)),
                           city=r.choice(CITIES) if r.random() < 0.7 else cap(made_up(r)),
                           famous=r.choice(FAMOUS) if r.random() < 0.6 else person(r, r.random() < .5, .3) + " " + cap(made_up(r)),
                           subject=r.choice(SUBJECTS) if r.random() < 0.65 else made_up(r),
                           event=r.choice(EVENTS), year=str(r.randint(1000, 2030)), lang=r.choice(LANGS), code=c1, code2=c2,
                           word=w, Word=cap(w))


def t_unknown(r):
    return Turn(fill_unknown(r, r.choice(UNKNOWN)),
                say(r, DONT + " [I am only a very small language model.|I am only a very small model.|Ask me something simple.||]").strip(), "do not know")


STATEMENTS = (
    "I bought {a} today.", "I have {a}.", "My {f} has {a}.", "I saw {a} yesterday.", "I work in {city}.", "I live in {city}.",
    "I come from {country}.", "I am learning {lang}.", "I am writing a program in {code}.", "I read a book about {subject}.",
    "My {f} is a doctor.", "I have two brothers.", "I think {subject} is interesting.", "We are going to {city} tomorrow.",
    "Yesterday I watched a movie about {famous}.", "It is raining.", "The weather is nice today.", "I like to play the {w}.",
    "I am reading about {subject}.", "I have a test tomorrow.", "My {f} likes {subject}.", "I went shopping with my {f}.",
    "Today is my birthday.", "I am at work.", "I had a bad dream.", "I made {a}.", "Look, {a}!", "I am cooking dinner.",
)
TASKS = (
    "Write a letter to {famous}.", "Write an essay about {subject}.", "Book a table in {city}.", "Call my {f}.", "Draw {a}.",
    "Fix my {w}.", "Translate this text into {lang}.", "Send a message to my {f}.", "Play a song by {famous}.", "Turn on the light.",
    "Open the {w}.", "Make me {a}.", "Search the web for {subject}.", "Write code in {code}.", "Order a pizza.", "Set a timer.",
    "Buy {a} for me.", "Show me a picture of {a}.", "Summarize this article about {subject}.", "Solve this equation.", "Act as {a}.",
)


def fill_free(r, template):
    w = rare(r)
    return fill_unknown(r, template.replace("{a}", an(w)).replace("{w}", w).replace("{f}", r.choice("brother sister mother father friend uncle".split())))


def t_statement(r):
    return Turn(fill_free(r, r.choice(STATEMENTS)), say(r, "[That is interesting! Tell me more.|I see. Tell me more about it.|How interesting! Thank you for telling me.]"), None)


def t_task(r):
    return Turn(fill_free(r, r.choice(TASKS)), "I cannot do that. I can tell short stories and answer simple questions.", "cannot")


def t_nonsense(r):
    q = r.choice([lambda: " ".join(made_up(r) for _ in range(r.randint(1, 4))), lambda: "".join(r.choice("asdfghjklqwertyuiopzxcvbnm") for _ in range(r.randint(4, 10))),
                  lambda: r.choice("?.!") * r.randint(1, 3)])()
    return Turn(q, "I do not understand that. Can you say it again?", "understand")


def t_repeat(r):
    m = r.random()
    if m < 0.5:
        s = sentence(r)
        return Turn(say(r, "[Repeat after me|Please repeat|Say this|Repeat][:|:] {s}", s=s), s, s)
    if m < 0.8:
        n = person(r, r.random() < 0.5, 0.5)
        return Turn(say(r, "[Say hello to {n}.|Greet {n}.|Say hi to {n}.|Please say hello to my friend {n}.]", n=n), f"Hello, {n}!", n)
    w = r.choice(SPELL) if r.random() < 0.5 else made_up(r)
    n = r.choice([2, 3, 3, 4])
    return Turn(f"Say {w} {NUMBERS[n]} times.", ", ".join([w] * n) + ".", ", ".join([w] * n))


def sentence(r):
    n = person(r, r.random() < 0.5, 0.5)
    k = rare(r) if r.random() < 0.3 else r.choice(KINDS)
    return say(r, r.choice(["The {k} is {c}.", "{n} has {a} {o}.", "My {k} likes the {p}.", "I see {x} {k} near the {p}.",
                            "{n} and the {k} are friends.", "We have {d} {o}s."]),
               n=n, k=k, c=r.choice(COLORS), a=an(r.choice(COLORS)), o=r.choice(OBJECTS).replace("box", "ball"),
               p=r.choice(PLACES), x=an(r.choice(COLORS)), d=NUMBERS[r.randint(2, 9)])


def t_which(r):
    n = person(r, True, 0.5)
    m = person(r, False, 0.5)
    o, o2 = r.sample(OBJECTS, 2)
    c, c2 = r.sample(COLORS, 2)
    p, p2 = r.sample(PLACES, 2)
    first = r.random() < 0.5
    ctx = say(r, "{n} has {a} {o}. {m} has {b} {o2}.", n=n, a=an(c), o=o, m=m, b=an(c2), o2=o2)
    kind = r.randrange(4)
    if kind == 0:
        q, a, k = f"Who has the {o if first else o2}?", f"{n if first else m} has the {o if first else o2}.", n if first else m
    elif kind == 1:
        q, a, k = f"What color is the {o if first else o2}?", f"The {o if first else o2} is {c if first else c2}.", c if first else c2
    elif kind == 2:
        q, a, k = f"What does {n if first else m} have?", f"{n if first else m} has {an(c if first else c2)} {o if first else o2}.", o if first else o2
    else:
        ctx = say(r, "{n} is [at|near] the {p}. {m} is [at|near] the {p2}.", n=n, m=m, p=p, p2=p2)
        q, a, k = f"Where is {n if first else m}?", f"{n if first else m} is near the {p if first else p2}.", p if first else p2
        a = a if f"near the {p if first else p2}" in ctx else a.replace("near", "at")
    return Turn(ctx + " " + q, a, k)


def t_story(r):
    m = r.random()
    if m < 0.12:
        s = story(r)
        q = say(r, "[Tell me a story.|Tell me a story, please.|A story, please.|Can you tell me a story?|I want to hear a story.|tell me a story|Do you know a story?]")
        return Turn(q, s.text, None)
    if m < 0.2:
        k = r.choice(KINDS)
        return Turn(say(r, "[Tell me a short story|Tell me a very short story|A short story] about {k}.", k=an(k)), tiny_story(r, k), k)
    girl = r.random() < 0.5
    if m < 0.45:
        k = (rare(r) if r.random() < 0.12 else r.choice(KINDS)) if r.random() < 0.8 else ("girl" if girl else "boy")
        s = story(r, kind=k, girl=girl)
        what = an(r.choice(["", "little "]) + k)
    elif m < 0.7:
        k = (rare(r) if r.random() < 0.1 else r.choice(KINDS)) if r.random() < 0.8 else ("girl" if girl else "boy")
        o = made_up(r) if r.random() < 0.08 else r.choice(OBJECTS)
        if r.random() < 0.5:
            o2 = r.choice([x for x in OBJECTS if x != o])
            s, what = story(r, kind=k, girl=girl, objects=(o, o2)), f"{an(k)}, {an(o)} and {an(o2)}"
        else:
            s, what = story(r, kind=k, girl=girl, objects=(o,)), f"{an(k)} and {an(o)}"
    elif m < 0.9:
        k = r.choice(["girl", "boy"]) if r.random() < 0.6 else r.choice(KINDS)
        girl = k == "girl" or (k != "boy" and girl)
        n = cap(made_up(r)) if r.random() < 0.35 else r.choice((GIRLS if girl else BOYS) if k in HUMAN else PETS)
        o = r.choice(OBJECTS)
        if r.random() < 0.3:
            s, what = story(r, kind=k, name=n, girl=girl, objects=(o,)), f"{an(k)} named {n} and {an(o)}"
        else:
            s, what = story(r, kind=k, name=n, girl=girl), f"{an(k)} named {n}" if r.random() < 0.7 else n
    else:
        k, h = r.sample([x for x in KINDS if x != "robot"], 2)
        s, what = story(r, kind=k, helper=h), f"{an(k)} and {an(h)}"
    q = say(r, "[Tell me|Tell me|Can you tell me|Please tell me|I want to hear|Write] a story about {w}", w=what)
    return Turn(q + ("?" if q.startswith("Can") else r.choice([".", ".", "."])), s.text, s.name if s.name in q else s.kind)


TOPICS: dict[str, tuple[float, Callable]] = {
    "hello": (2, t_hello), "how": (1, t_how), "fine": (.7, t_fine), "persona": (2.5, t_whoami), "abilities": (1.2, t_can),
    "about": (3, t_about), "thanks": (.8, t_thanks), "bye": (.8, t_bye), "addition": (9, t_add), "subtraction": (8, t_sub),
    "big numbers": (2, t_bigsum), "big numbers 2": (.5, t_bignumber), "word sums": (4, t_wordsum), "double": (.8, t_double), "compare numbers": (2, t_compare_numbers),
    "counting": (3, t_count), "even or odd": (.8, t_even), "opposites": (3.5, t_opposite), "unknown opposite": (.7, t_opposite_unknown),
    "sounds": (2, t_sound), "homes": (2, t_home), "young": (1.5, t_young), "food": (1.6, t_eats), "legs": (1.5, t_legs),
    "able": (2, t_able), "animals": (1.2, t_animal), "statements": (1.8, t_statement), "tasks": (1.5, t_task), "unknown thing": (2, t_animal_unknown), "colors": (3.5, t_color), "mixing": (.6, t_mix), "color examples": (.6, t_color_things),
    "is it colored": (1, t_is_color), "categories": (4, t_category), "size": (2, t_bigger), "speed": (1, t_faster),
    "days": (3, t_day), "months": (3, t_month), "spelling": (3, t_spell), "alphabet": (.2, t_alphabet), "rhymes": (1.5, t_rhyme),
    "body": (1.3, t_body), "uses": (1.6, t_use), "materials": (1.3, t_made), "facts": (3, t_truth), "plurals": (1.3, t_plural),
    "jokes": (1.2, t_joke), "poems": (.7, t_poem), "feelings": (2, t_feel), "likes": (.8, t_like), "user likes": (.8, t_user_likes),
    "told": (.5, t_day_told), "unknown": (8, t_unknown), "nonsense": (.7, t_nonsense), "repeat": (2, t_repeat), "reading": (3, t_which),
    "story": (4, t_story),
}
_NAMES = list(TOPICS)
_CUM = []
for _w, _ in TOPICS.values():
    _CUM.append((_CUM[-1] if _CUM else 0) + _w)


def pick(r: Rng, name: str | None = None) -> Turn:
    name = name or r.choices(_NAMES, cum_weights=_CUM)[0]
    return other_words(r, TOPICS[name][1](r)._replace(topic=name))


def other_words(r: Rng, t: Turn) -> Turn:
    """Now and then the question in other words, where there are some."""
    user = reworded(r, t.topic, t.user) if r.random() < 0.45 else None
    return t._replace(user=user) if user else t


def casual(r: Rng, q: str) -> str:
    """How people type: sometimes without capitals or the last mark, sometimes with a polite word."""
    x = r.random()
    if ":" in q or len(q) > 120:
        return q
    if x < 0.10:
        return q[0].lower() + q[1:]
    if x < 0.16:
        return q.rstrip(".?!") or q
    if x < 0.22:
        return (q[0].lower() + q[1:]).rstrip(".?!") or q
    if x < 0.25 and q[-1:] == "." and len(q) > 12:
        return q[:-1] + ", please."
    if x < 0.27 and q[-1:] == "?" and q[:2] == "Wh":
        return "Sprout, " + q[0].lower() + q[1:]
    if x < 0.29:
        return "Please tell me: " + q if q[-1:] == "?" and q[:2] == "Wh" else q
    return q


# --------------------------------------------------------------------------- chats of several turns

SYSTEMS = ("You are Sprout, a very small language model.", "You are Sprout.", "You are a helpful assistant.",
           "You are a friendly assistant.", "Answer in short sentences.", "You are a kind assistant. Be brief.")

ABOUT_USER = [  # told, answer, asked, recalled; {v} is what must be copied
    ("name", ["My name is {v}.", "I am {v}.", "I'm {v}.", "My name's {v}.", "Hello, I am {v}.", "Hi! My name is {v}.", "Call me {v}.", "my name is {v}"],
     ["Nice to meet you, {v}!", "Hello, {v}! Nice to meet you."],
     ["What is my name?", "Do you know my name?", "Who am I?", "What's my name?", "Do you remember my name?", "what is my name", "Tell me my name."], "Your name is {v}."),
    ("dog", ["My dog is called {v}.", "I have a dog named {v}.", "The name of my dog is {v}."], ["{v} is a nice name for a dog!"],
     ["What is my dog called?", "What is the name of my dog?", "Do you remember my dog?"], "Your dog is called {v}."),
    ("cat", ["My cat is called {v}.", "I have a cat named {v}.", "The name of my cat is {v}."], ["{v} is a nice name for a cat!"],
     ["What is my cat called?", "What is the name of my cat?", "Do you remember my cat?"], "Your cat is called {v}."),
    ("friend", ["My best friend is {v}.", "My friend is called {v}.", "I have a friend named {v}."], ["{v} sounds like a good friend!"],
     ["Who is my best friend?", "What is my friend called?", "Who is my friend?"], "Your friend is {v}."),
    ("color", ["My favorite color is {v}.", "I like the color {v} best."], ["{V} is a nice color!"],
     ["What is my favorite color?", "Which color do I like?", "Do you remember my favorite color?"], "Your favorite color is {v}."),
    ("age", ["I am {v} years old.", "I'm {v} years old."], ["{v} is a good age!"],
     ["How old am I?", "Do you know how old I am?"], "You are {v} years old."),
    ("food", ["My favorite food is {v}.", "I like to eat {v}."], ["I have heard that {v} taste good!"],
     ["What is my favorite food?", "What do I like to eat?"], "You like to eat {v}."),
]


def about_user(r: Rng, key: str | None = None):
    k, told, ack, asked, rec = r.choice(ABOUT_USER) if key is None else next(x for x in ABOUT_USER if x[0] == key)
    if k == "name" or k == "friend":
        v = person(r, r.random() < 0.5, 0.5)
    elif k in ("dog", "cat"):
        v = cap(made_up(r)) if r.random() < 0.5 else r.choice(PETS)
    elif k == "color":
        v = r.choice(COLORS)
    elif k == "age":
        v = str(r.randint(3, 99))
    else:
        v = plural(r.choice("apple banana pear carrot cookie cherry peach noodle pancake strawberry potato".split()))
    V = cap(v)
    question = other_words(r, Turn(r.choice(asked), rec.format(v=v), v, "recall " + k))
    return k, Turn(r.choice(told).format(v=v), r.choice(ack).format(v=v, V=V), v), question


NOT_TOLD = {"name": "I do not know your name yet. What is your name?", "dog": "I do not know your dog. What is it called?",
            "cat": "I do not know your cat. What is it called?", "friend": "I do not know your friend. Who is it?",
            "color": "You did not tell me your favorite color yet.", "age": "You did not tell me how old you are.",
            "food": "You did not tell me what you like to eat."}


def with_ellipsis(r: Rng, first: Turn) -> Turn | None:
    """A second question of the same kind in its short form ("And a dog?"), or None."""
    for _ in range(20):
        t = pick(r, first.topic)
        if t.verb and t.answer.split()[0:1] == first.answer.split()[0:1] and t.answer != first.answer and len(t.answer) < 60:
            if _same_form(first.answer, t.answer):
                return t._replace(user=t.verb)
    return None


def _same_form(a: str, b: str) -> bool:
    """Whether two answers come from the same question form: their fixed words agree."""
    fixed = {"says", "lives", "eats", "has", "is", "plus", "minus", "After", "Before", "opposite", "spelled", "called",
             "rhymes", "plural", "made", "legs", "days", "can", "cannot", "with", "in"}
    fa, fb = ({w.strip(".,") for w in s.split()} & fixed for s in (a, b))
    return {w for w in fa if w not in ("can", "cannot", "in")} == {w for w in fb if w not in ("can", "cannot", "in")}


ELLIPTIC = {"addition", "subtraction", "sounds", "homes", "young", "food", "colors", "opposites", "rhymes", "plurals", "legs"}


def chat_turns(r: Rng) -> tuple[str | None, list[Turn]]:
    system = None
    if r.random() < 0.12:
        system = r.choice(SYSTEMS)
    m = r.random()
    turns: list[Turn] = []
    if m < 0.42:                                            # a few independent questions
        n = r.choices((1, 2, 3, 4, 5), (45, 20, 15, 12, 8))[0]
        if n > 1 and r.random() < 0.35:
            turns.append(pick(r, "hello"))
        for _ in range(n):
            t = pick(r)
            if t.topic == "story" and n > 2 and r.random() < 0.6:
                t = pick(r)
            turns.append(t)
            if t.topic in ELLIPTIC and t.verb and r.random() < 0.3:
                e = with_ellipsis(r, t)
                if e:
                    turns.append(e)
        if n > 1 and r.random() < 0.25:
            turns.append(pick(r, r.choice(["thanks", "bye"])))
    elif m < 0.64:                                          # something told, later recalled
        if r.random() < 0.3:
            turns.append(pick(r, "hello"))
        k, told, asked = about_user(r, "name" if r.random() < 0.55 else None)
        pairs = [(k, told, asked)]
        if r.random() < 0.4:
            x = about_user(r)
            if x[0] != k:
                pairs.append(x)
        turns += [p[1] for p in pairs]
        for _ in range(r.choice((0, 0, 1, 1, 2, 3))):
            t = pick(r)
            if t.topic in ("hello", "story"):
                t = pick(r, r.choice(["addition", "sounds", "colors", "unknown"]))
            turns.append(t)
        r.shuffle(pairs)
        turns += [p[2] for p in pairs]
        if r.random() < 0.2:
            turns.append(pick(r, r.choice(["thanks", "bye"])))
    elif m < 0.69:                                          # asked before it was told
        k, told, asked = about_user(r, "name" if r.random() < 0.6 else None)
        turns += [Turn(asked.user, NOT_TOLD[k], "not", "not told")]
        if r.random() < 0.7:
            turns += [told, asked] if r.random() < 0.6 else [told, pick(r, "opposites"), asked]
    elif m < 0.74:                                          # another persona from the system message
        n = person(r, r.random() < 0.5, 0.5)
        what = r.choice(["a friendly robot", "a small robot", "a helper", "a teacher", "a talking cat", "a friendly assistant"])
        system = say(r, "[You are {n}, {w}.|Your name is {n}. You are {w}.]", n=n, w=what)
        turns.append(Turn(t_whoami(r).user, f"I am {n}, {what}.", n, "system persona"))
        if r.random() < 0.5:
            turns.insert(0, Turn("Hello!", f"Hello! I am {n}.", n, "system persona"))
        if r.random() < 0.5:
            turns.append(pick(r))
    elif m < 0.82:                                          # a story and a question about it
        t = None
        while t is None or len(t.answer) < 150:
            k = r.choice(["girl", "boy"]) if r.random() < 0.4 else r.choice(KINDS)
            s = story(r, kind=k)
            t = Turn(say(r, "Tell me a story about {k}.", k=an(k)), s.text, None, "story")
        turns.append(t)
        q, a = r.choice([("Who was the story about?", f"The story was about {s.name}, a little {s.kind}."),
                         (f"What was the name of the {s.kind}?", f"The name of the {s.kind} was {s.name}."),
                         ("What was the story about?", f"The story was about {s.name}, a little {s.kind}.")])
        turns.append(Turn(q, a, s.name, "story question"))
    elif m < 0.90:                                          # an offer taken up
        t = pick(r, "feelings")
        while "Would you like" not in t.answer:
            t = pick(r, "feelings")
        turns.append(t)
        if r.random() < 0.75:
            turns.append(Turn(say(r, "[Yes|Yes, please|Yes please|Sure|Ok|Okay|yes][.|!|]"), r.choice(JOKES) if "joke" in t.answer else story(r).text, None, "offer"))
            turns.append(pick(r, "thanks"))
        else:
            turns.append(Turn(say(r, "[No|No, thank you|No thanks|no][.|]"), "All right. We can talk about something else.", "right", "offer"))
            turns.append(pick(r))
    elif m < 0.93:                                          # once more
        t = pick(r, r.choice(["jokes", "story"]))
        turns.append(t)
        turns.append(Turn(say(r, "[Another one, please.|Another one!|One more, please.|Again!|Tell me another one.|Another]"),
                          r.choice(JOKES) if t.topic == "jokes" else story(r).text, None, "another"))
    else:                                                   # short reactions
        turns.append(pick(r))
        q, a = r.choice([("[Really?|Are you sure?|Is that true?]", "I think so, but I am very small and can be wrong."),
                         ("[Why?|why|But why?]", "I do not know why."), ("[Ok|Okay|Ok.|I see.|Oh.|Cool!|Nice!|Great!|Wow!]", "Is there anything else you would like to know?"),
                         ("[That is wrong.|That's wrong.|No, that is not right.|You are wrong.]", "I am sorry. I am very small and make mistakes."),
                         ("[You are funny.|I like you.|You are nice.|Well done!|Good job!|Good!]", "Thank you! That is very kind of you."),
                         ("[You are stupid.|You are bad.|I do not like you.]", "I am sorry. I do my best, but I am very small."),
                         ("[Yes|Yes.|No|No.]", "All right. What would you like to talk about?")])
        turns.append(Turn(say(r, q), a, None, "reaction"))
        if r.random() < 0.4:
            turns.append(pick(r))
    return system, turns


def chatml(messages: list[tuple[str, str]]) -> str:
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in messages)


def chat(r: Rng) -> str:
    system, turns = chat_turns(r)
    msgs = [("system", system)] if system else []
    for t in turns:
        msgs += [("user", casual(r, t.user)), ("assistant", t.answer)]
    return chatml(msgs)


# --------------------------------------------------------------------------- copying curriculum

def copy_doc(r: Rng) -> str:
    m = r.random()
    if m < 0.5:
        k, told, asked = about_user(r, r.choice(["name", "name", "dog", "cat", "friend"]))
        if m < 0.06:                                        # told and asked at once
            return chatml([("user", f"{told.user.rstrip('.')}. {asked.user}"), ("assistant", asked.answer)])
        turns = [told]
        if r.random() < 0.4:
            x = about_user(r)
            if x[0] != k:
                turns.append(x[1])
        if r.random() < 0.3:
            turns.append(pick(r, "hello"))
        turns.append(asked)
        return chatml([m for t in turns for m in (("user", t.user), ("assistant", t.answer))])
    if m < 0.8:
        t = r.choice([t_repeat, t_which, t_wordsum, t_animal_unknown, t_user_likes])(r)
        return chatml([("user", t.user), ("assistant", t.answer)])
    n, h = cap(made_up(r)), cap(made_up(r))
    o = r.choice(OBJECTS)
    return say(r, "[Once there was a {k} named {n}.|There was a little {k}. Its name was {n}.] {n} had {a}. {h} wanted the {o}. "
               "\"Here is my {o}, {h},\" said {n}. [\"Thank you, {n},\" said {h}. |]{n} and {h} were happy.", n=n, h=h, o=o, a=an(o), k=r.choice(KINDS))


def t_list(r):
    """Neighbours in their list: a greedy decoder then never names the same thing twice."""
    c = r.choice(list(CATEGORY))
    n = r.choice([2, 3, 3, 3, 4])
    all_ = CATEGORY[c]
    i = r.randrange(len(all_))
    items = [w if w in MASS else plural(w) for w in (all_ + all_)[i:i + n]]
    return Turn(say(r, "[Name {n} {C}.|Tell me {n} {C}.|Can you name {n} {C}?|List {n} {C}.|Give me {n} {C}.]", n=r.choice([NUMBERS[n], NUMBERS[n], str(n)]), C=plural(c)),
                f"{cap(NUMBERS[n])} {plural(c)} are {listing(items)}.", f"{NUMBERS[n]} {plural(c)}")


def t_wish(r):
    """Stories about whatever is asked for."""
    k = rare(r) if r.random() < 0.5 else r.choice("princess prince king queen knight fairy witch wizard teacher farmer".split())
    o = made_up(r) if r.random() < 0.3 else r.choice(OBJECTS + "sword tree flower cake song".split())
    s = story(r, kind=k, girl=k in ("princess", "queen", "fairy", "witch") or (k not in ("prince", "king") and r.random() < 0.5), objects=(o,))
    what = an(k) if r.random() < 0.4 else f"{an(k)} and {an(o)}"
    return Turn(say(r, "[I want|I would like|Make up|Tell me|Write|Tell|Give me] a story about {w}.", w=what), s.text, None)


# The topics that need the most practice, several questions of one topic to a document or mixed.
DRILL = {"addition": 6, "subtraction": 6, "word sums": 5, "reading": 5, "spelling": 3, "counting": 3.5, "compare numbers": 2,
         "even or odd": 1, "double": .6, "days": 2, "months": 2, "opposites": 2, "colors": 1.5, "homes": 1, "sounds": 1,
         "young": .8, "food": 1, "legs": .8, "able": 2.5, "size": 2, "speed": .8, "categories": 1.5, "uses": 1, "materials": .8,
         "plurals": 1, "rhymes": 1, "facts": 1.2, "body": .6, "is it colored": .7, "big numbers": 1, "unknown thing": 1}
DRILL_ONLY: dict[str, Callable] = {"lists": t_list, "wishes": t_wish}


def drill_doc(r: Rng) -> str:
    names, weights = list(DRILL), list(DRILL.values())
    turns = []
    for _ in range(r.choice((1, 1, 1, 2, 3))):
        if r.random() < 0.1:
            turns.append(DRILL_ONLY[r.choice(("lists", "lists", "wishes"))](r))
            continue
        t = pick(r, r.choices(names, weights)[0])
        turns.append(t)
        if t.topic in ELLIPTIC and t.verb and r.random() < 0.25:
            e = with_ellipsis(r, t)
            turns += [e] if e else []
    return chatml([m for t in turns for m in (("user", casual(r, t.user)), ("assistant", t.answer))])


# --------------------------------------------------------------------------- exam

# Asked in words that no template above has.
NEW_UNKNOWN = (
    "Who painted the Mona Lisa?", "How many planets are there?", "At what temperature does water boil?",
    "Who is the prime minister of Canada?", "What is the currency of Japan?", "Which ocean is the deepest?", "Who is Batman?",
    "Where can I buy cheap shoes?", "How long does it take to drive to Madrid?", "What is the name of the queen of Denmark?",
    "How many continents are there?", "Why do cats purr?", "What is the atomic number of gold?", "Who built the pyramids?",
    "What is the best way to learn piano?", "How many calories are in an egg?", "Which team won the cup in 1998?",
    "What causes earthquakes?", "Do you know the song Yesterday?", "What is a good password?",
)


class Question(NamedTuple):
    topic: str
    messages: list[tuple[str, str]]
    key: str
    answer: str


def exam(seed: int, per_topic: int) -> list[Question]:
    """Questions with a known answer, from a seed that training does not use."""
    r = Rng(seed)
    out: list[Question] = []
    for name in TOPICS:
        seen: set[str] = set()
        for _ in range(per_topic * 8):
            t = TOPICS[name][1](r)._replace(topic=name)
            if t.key and t.key != "?|!|." and name != "story" and t.user not in seen and len(seen) < per_topic:
                seen.add(t.user)
                out.append(Question(name, [("user", t.user)], t.key, t.answer))
    for k in ("name", "dog", "friend", "color", "age"):
        for i in range(per_topic):
            _, told, asked = about_user(r, k)
            mid = [pick(r, "sounds"), pick(r, "addition")][: i % 3]
            msgs = [m for t in [told] + mid for m in (("user", t.user), ("assistant", t.answer))]
            out.append(Question("recall " + k, msgs + [("user", asked.user)], asked.key, asked.answer))
    for _ in range(per_topic):
        n = person(r, r.random() < 0.5, 0.5)
        out.append(Question("system persona", [("system", f"You are {n}, a friendly robot."), ("user", "What is your name?")], n, f"I am {n}, a friendly robot."))
    for q in NEW_UNKNOWN[:2 * per_topic]:
        out.append(Question("unknown, new words", [("user", q)], "do not know", DONT))
    for q in ("What is my name?", "Who am I?", "Do you know my name?"):
        out.append(Question("not told", [("user", q)], "not", NOT_TOLD["name"]))
    return out


def reworded_exam(seed: int, per_topic: int) -> list[Question]:
    """Questions of the topics that have wordings of their own for the exam, in these."""
    r = Rng(seed)
    out: list[Question] = []
    for name in TOPICS:
        seen: set[str] = set()
        for _ in range(per_topic * 60):
            t = TOPICS[name][1](r)
            user = reworded(r, name, t.user, held=True) if t.key and t.key != "?|!|." else None
            if user and user not in seen and len(seen) < per_topic:
                seen.add(user)
                out.append(Question(name, [("user", user)], t.key or "", t.answer))
    return out


def right(answer: str, key: str) -> bool:
    return re.search(r"(?<![\w-])" + re.escape(key.lower()) + r"(?![\w])", answer.lower()) is not None
