"""Templates of sentences, and other ways to ask the questions of `corpus.py`.

The last wordings of each question are held out: they are in no training text, and the exam asks in them.
"""

from __future__ import annotations

import random
import re

Rng = random.Random

_ALT = re.compile(r"\[([^\[\]]*)\]")


def say(r: Rng, template: str, **kw: str) -> str:
    """Expands [a|b|c] (nested, innermost first) with `r`, then fills {fields}."""
    while "[" in template:
        template = _ALT.sub(lambda m: r.choice(m.group(1).split("|")), template)
    return template.format(**kw) if kw else template


# Topic, the question as a pattern, other wordings of the training, and those of the exam alone; {0}, {1} are the groups.
REWORDED: list[tuple[str, str, str, str]] = [
    ("persona", r"(?:Who are you|What is your name|What are you called)\?", "[How are you called?|May I ask your name?|What should I call you?|Say your name.|And who are you?|Which name do you have?]",
     "[Introduce yourself.|By what name do you go?]"),
    ("abilities", r"(?:What can you do|How can you help me|What do you know)\?", "[What can we do together?|What are you able to do?|Show me what you can do.|What do you do?]", "[Which things can you do for me?|List your skills.]"),
    ("hello", r"Hell?o!", "[Greetings!|Hi, Sprout!|Howdy!|Hello again!]", "[Hello to you!|Well, hello there!]"),
    ("thanks", r"Thank(?:s| you)!", "[Many thanks!|Thank you so much!|I thank you!|Thanks for your help!]", "[You have my thanks!|That was helpful, thank you.]"),
    ("bye", r"(?:Bye|Goodbye)!", "[See you!|I must go.|That is all, bye!|So long!]", "[I am leaving now, goodbye.|Until next time!]"),
    ("addition", r"What is (\w+) plus (\w+)\?", "[What do {0} and {1} make?|What does {0} plus {1} give?|How much do {0} and {1} make together?|Tell me {0} plus {1}.|{0} plus {1} is what?|What is the sum of {0} and {1}?]",
     "[If I add {1} to {0}, what do I get?|How much are {0} and {1} in total?|Please work out {0} plus {1}.]"),
    ("subtraction", r"What is (\w+) minus (\w+)\?", "[What does {0} minus {1} give?|Tell me {0} minus {1}.|{0} minus {1} is what?|What is left of {0} without {1}?|How much is {0} less {1}?]",
     "[If I take {1} away from {0}, what is left?|Please work out {0} minus {1}.]"),
    ("opposites", r"What is the opposite of (\w+)\?", "[Which word is the opposite of {0}?|What is not {0} but the opposite?|Give me the opposite of {0}.|{0}: what is the opposite?|Name the opposite of {0}.]",
     "[Which word means the opposite of {0}?|The reverse of {0} is what?]"),
    ("sounds", r"What does (an? [\w ]+) say\?", "[Tell me what {0} says.|Which sound does {0} make?|What do you hear from {0}?|What is the sound of {0}?|How does {0} go?]", "[Which noise comes from {0}?|If I meet {0}, what will it say?]"),
    ("homes", r"Where does (an? [\w ]+) live\?", "[In what place does {0} live?|What is the home of {0}?|Tell me where {0} lives.|Where would I find {0}?|Where is {0} at home?]", "[Which place is home for {0}?|Where should I look for {0}?]"),
    ("food", r"What does (an? [\w ]+) eat\?", "[What should I feed {0}?|Tell me what {0} eats.|What is the food of {0}?|What can I give {0} to eat?]", "[Which food is right for {0}?|What would {0} have for dinner?]"),
    ("young", r"What is a baby (\w+) called\?", "[What is the name for a baby {0}?|Tell me what a baby {0} is called.|How do you call a baby {0}?]", "[Which word do we use for a baby {0}?]"),
    ("legs", r"How many legs does (an? \w+) have\?", "[Tell me how many legs {0} has.|What number of legs does {0} have?|On how many legs does {0} walk?]", "[Count the legs of {0}.|With how many legs is {0} born?]"),
    ("colors", r"What color is (an? [\w ]+|[\w ]+)\?", "[What color does {0} have?|Tell me the color of {0}.|Of what color is {0}?|Which color has {0}?|The color of {0}?]", "[How would you color {0}?|In which color should I paint {0}?]"),
    ("mixing", r"What do you get if you mix (\w+) and (\w+)\?", "[I mix {0} and {1}. What do I get?|{0} and {1} make what color?|Which color comes from {0} and {1}?]", "[What happens when {0} paint meets {1} paint?]"),
    ("able", r"Can (an? \w+) (fly|swim)\?", "[Does {0} {1}?|Do you think {0} can {1}?|Tell me if {0} can {1}.]", "[Would {0} be able to {1}?|Is it true that {0} can {1}?]"),
    ("size", r"Which is (bigger|smaller), (an? \w+) or (an? \w+)\?", "[{1} or {2}: which is {0}?|Is {1} {0} or {2}?|Which one is {0}, {1} or {2}?]", "[Between {1} and {2}, which is {0}?|Compare {1} and {2}. Which is {0}?]"),
    ("speed", r"Which is (faster|slower), (an? \w+) or (an? \w+)\?", "[{1} or {2}: which is {0}?|Which one is {0}, {1} or {2}?]", "[Between {1} and {2}, which is {0}?]"),
    ("days", r"(?:Which|What) day comes after (\w+)\?", "[Tell me the day after {0}.|What is the next day after {0}?|Which day follows {0}?|The day after {0}?]", "[Once {0} is over, which day is it?|Name the day that follows {0}.]"),
    ("days", r"(?:Which|What) day comes before (\w+)\?", "[Tell me the day before {0}.|Which day is right before {0}?|The day before {0}?]", "[Name the day that is followed by {0}.|Which day ends when {0} begins?]"),
    ("months", r"(?:Which|What) month comes after (\w+)\?", "[Tell me the month after {0}.|Which month follows {0}?|The month after {0}?]", "[Once {0} is over, which month is it?|Name the month that follows {0}.]"),
    ("months", r"(?:Which|What) month comes before (\w+)\?", "[Tell me the month before {0}.|Which month is right before {0}?|The month before {0}?]", "[Name the month that is followed by {0}.]"),
    ("spelling", r"How do you spell (\w+)\?", "[How do I spell {0}?|Tell me how to spell {0}.|The spelling of {0}?|Please spell {0} for me.|How is {0} written?]", "[Give me the letters of {0}.|Which letters make the word {0}?]"),
    ("rhymes", r"What rhymes with (\w+)\?", "[Find a rhyme for {0}.|Give me a rhyme for {0}.|A rhyme for {0}, please.|What is a rhyme for {0}?]", "[Which word sounds like {0} at the end?|I need a rhyme with {0}.]"),
    ("plurals", r"What is the plural of (\w+)\?", "[Tell me the plural of {0}.|The plural of {0}?|What are many of {0} called?]", "[Form the plural of {0}.|Which word is used for two of {0}?]"),
    ("counting", r"Count to (\w+)\.", "[Count up to {0}.|Tell me the numbers up to {0}.|I want you to count to {0}.]", "[Say the numbers from one to {0}.|Let me hear you count up to {0}.]"),
    ("counting", r"(?:What|Which number) comes after (\d+)\?", "[Which number follows {0}?|Tell me the number after {0}.|What is the next number after {0}?]", "[Name the number that follows {0}.]"),
    ("even or odd", r"Is (\d+) even or odd\?", "[Even or odd: {0}?|Tell me if {0} is even or odd.|{0}, even or odd?]", "[Would you call {0} even or odd?]"),
    ("compare numbers", r"(?:Which|What) is (bigger|larger|smaller), (\d+) or (\d+)\?", "[{1} or {2}: which is {0}?|Which one is {0}, {1} or {2}?|Is {1} {0} or {2}?]", "[Between {1} and {2}, which is {0}?]"),
    ("uses", r"What do I need to ([\w ]+)\?", "[How can I {0}?|I want to {0}. What do I need?|What helps me to {0}?|Which thing do I need to {0}?]", "[What is useful to {0}?|With what would you {0}?]"),
    ("materials", r"What is (an? [\w ]+) made of\?", "[What do you make {0} of?|Tell me what {0} is made of.|Of what is {0} made?]", "[Which material is {0} made of?|What would I need to make {0}?]"),
    ("categories", r"What is (an? \w+)\?", "[Tell me what {0} is.|What kind of a thing is {0}?|Do you know what {0} is?]", "[What would you call {0}?|To which kind of things does {0} belong?]"),
    ("categories", r"Name (\w+) (\w+)\.", "[I want to hear {0} {1}.|Which {1} do you know? Tell me {0}.|Please name {0} {1}.|Find {0} {1}.]", "[I need the names of {0} {1}.|Think of {0} {1}.]"),
    ("jokes", r"Tell me a joke\.", "[I want to hear a joke.|Do you have a joke for me?|Give me a joke.|Something funny, please.|A joke!]", "[I could use a good laugh.|Let me hear a joke.]"),
    ("recall name", r"What is my name\?", "[How am I called?|Can you say my name?|Which name did I tell you?|Say my name.]", "[Have you forgotten my name?|By what name do you know me?]"),
    ("recall dog", r"What is my dog called\?", "[What is my dog's name?|Tell me my dog's name.|How is my dog called?]", "[Which name does my dog have?]"),
    ("recall cat", r"What is my cat called\?", "[What is my cat's name?|Tell me my cat's name.|How is my cat called?]", "[Which name does my cat have?]"),
    ("recall friend", r"Who is my best friend\?", "[What is my friend's name?|Tell me the name of my friend.|Which friend do I have?]", "[Do you still know who my friend is?]"),
    ("recall color", r"What is my favorite color\?", "[Which color do I like best?|Tell me my favorite color.]", "[Which color did I say I like?]"),
    ("recall age", r"How old am I\?", "[What is my age?|Tell me how old I am.]", "[Which age did I tell you?]"),
    ("reading", r"(.*) Who has the (\w+)\?", "[{0} Whose is the {1}?|{0} Tell me who has the {1}.|{0} To whom does the {1} belong?]", "[{0} Who is the one with the {1}?|{0} Which of them has the {1}?]"),
    ("reading", r"(.*) What does (\w+) have\?", "[{0} Tell me what {1} has.|{0} What is {1}'s thing?|{0} Which thing does {1} have?]", "[{0} What belongs to {1}?]"),
    ("reading", r"(.*) Where is (\w+)\?", "[{0} Tell me where {1} is.|{0} In which place is {1}?|{0} Where can we find {1}?]", "[{0} To which place must I go to see {1}?]"),
    ("word sums", r"(\w+) has (\d+) (\w+)\. \w+ (?:gets|finds|buys) (\d+) more\. How many (\w+) does \w+ have(?: now)?\?", "[{0} has {1} {2} and gets {3} more. How many {4} are there?|{0} had {1} {2}. Then {0} got {3} more. How many {4} now?]",
     "[To {0}'s {1} {2} come {3} more. How many {4} are that?]"),
]
_BY_TOPIC: dict[str, list[tuple[re.Pattern, str, str]]] = {}
for _topic, _pattern, _trained, _unseen in REWORDED:
    _BY_TOPIC.setdefault(_topic, []).append((re.compile(_pattern, re.S), _trained, _unseen))


def reworded(r: Rng, topic: str, question: str, held: bool = False) -> str | None:
    """The question in other words, with `held` in those of the exam; None if it has no other words."""
    for pattern, trained, unseen in _BY_TOPIC.get(topic, ()):
        if m := pattern.fullmatch(question):
            text = say(r, unseen if held else trained)
            for i, group in enumerate(m.groups()):
                text = text.replace(f"{{{i}}}", group)
            return text[:1].upper() + text[1:]
    return None


def held_out() -> list[re.Pattern]:
    """Every wording that is kept for the exam, as a pattern of whole questions."""
    out = []
    for _, _, _, unseen in REWORDED:
        for template in unseen[1:-1].split("|"):
            out.append(re.compile(re.sub(r"\\\{\d\\\}", "(.+)", re.escape(template)), re.S | re.I))
    return out
