"""Chats in which the model may call functions, as Qwen3's template writes them.

A function is drawn with its description: name, parameters and wording vary, so that they have to be read. What a function
returns cannot be known or computed by a model of this size (sums beyond its numbers, times, made-up facts): the answer has
to be copied from the result.

`render` writes what the runtime's template writes, byte for byte; tests on both sides compare them.
"""

from __future__ import annotations

import json
from typing import Any, Callable, NamedTuple

import corpus
from corpus import Rng, an, cap, made_up, person, plural, rare, say


class Use(NamedTuple):
    """A question and what follows from it."""

    user: str
    arguments: dict[str, Any] | None   # of the call; None for an answer without one
    result: str
    answer: str
    key: str                           # what a right answer contains


class Function(NamedTuple):
    family: str
    name: str
    spec: dict[str, Any]
    ask: Callable[[Rng], Use]


Words = tuple[str, str]  # templates for training, and others that are asked in the exam alone


def word(r: Rng, held: bool, words: Words, **fields: str) -> str:
    return say(r, words[held], **fields)


# --------------------------------------------------------------------------- descriptions and results

def spec(r: Rng, name: str, description: str, parameters: dict[str, dict], optional: tuple[str, ...] = ()) -> dict:
    described = r.random() < 0.4
    properties = {k: v if described else {x: y for x, y in v.items() if x != "description"} for k, v in parameters.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    required = [k for k in parameters if k not in optional]
    if r.random() < 0.85:
        schema["required"] = required
    if r.random() < 0.1:
        schema["additionalProperties"] = False
    function: dict[str, Any] = {"name": name}
    if r.random() < 0.93:
        function["description"] = description
    return {"type": "function", "function": function | {"parameters": schema}}


def text(description: str) -> dict:
    return {"type": "string", "description": description}


def number(description: str, kind: str = "number") -> dict:
    return {"type": kind, "description": description}


def result(r: Rng, **values: Any) -> str:
    """What a program returns: JSON in one of two layouts, or a single value alone."""
    x = r.random()
    if x < 0.2 and len(values) == 1:
        return str(next(iter(values.values())))
    return json.dumps(values, separators=(",", ":") if x < 0.6 else (", ", ": "))


FAILURES = ("not found", "there is no entry", "no connection", "timeout", "not available", "unknown name", "the service is closed",
            "access denied", "too many requests", "no answer")


def failed(r: Rng, use: Use) -> Use:
    problem = r.choice(FAILURES)
    return use._replace(result=json.dumps({"error": problem}, separators=(",", ":") if r.random() < 0.5 else None),
                        answer=f"That did not work: {problem}.", key=problem)


# --------------------------------------------------------------------------- calculators

SIGNS = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}


def operands(r: Rng, sign: str) -> tuple[int, int, int]:
    big = r.choice((99, 999, 999, 9999))
    if sign == "+":
        a, b = r.randint(2, big), r.randint(2, big)
        return a, b, a + b
    if sign == "-":
        a, b = sorted((r.randint(1, big), r.randint(1, big)), reverse=True)
        return a, b, a - b
    if sign == "*":
        a, b = r.randint(2, r.choice((20, 99, 999))), r.randint(2, r.choice((20, 99)))
        return a, b, a * b
    b, c = r.randint(2, r.choice((12, 99))), r.randint(2, r.choice((20, 99)))
    return b * c, b, c


SUMS: Words = ("[What is {a} {w} {b}?|What is {a} {w} {b}?|{a} {w} {b}|How much is {a} {w} {b}?|{a} {s} {b}|{a}{s}{b}|What is {a} {s} {b}?|"
               "Compute {a} {s} {b}.|Can you compute {a} {w} {b}?|Calculate {a} {w} {b}.|{a} {s} {b} =|What's {a} {w} {b}?]",
               "[Please work out {a} {w} {b}.|I need {a} {w} {b}.|Give me the value of {a} {s} {b}.|What do I get for {a} {w} {b}?]")
NAMED = {"+": ("[Add {a} and {b}.|Add {a} to {b}.|What is the sum of {a} and {b}?]", "Find the sum of {a} and {b} for me."),
         "-": ("[Subtract {b} from {a}.|Take {b} away from {a}.]", "Find the difference of {a} and {b} for me."),
         "*": ("[Multiply {a} by {b}.|Multiply {a} and {b}.|What is the product of {a} and {b}?]", "Find the product of {a} and {b} for me."),
         "/": ("[Divide {a} by {b}.|Can you divide {a} by {b}?]", "Split {a} into {b} equal parts.")}


def sum_question(r: Rng, held: bool, sign: str) -> tuple[str, int, int, int, str, str]:
    """Question, operands, value, and answer with its key."""
    a, b, c = operands(r, sign)
    x = r.random()
    if x < 0.18 and sign in "+-" and a > 1 and b > 1:
        who, things = person(r, r.random() < 0.5, 0.4), plural(r.choice(corpus.THINGS))
        more = ("{n} has {a} {t}. {n} [gets|buys|finds] {b} more. How many {t} does {n} have[ now|]?",
                "{n} had {a} {t} and then got another {b}. How many {t} are there now?")
        less = ("{n} has {a} {t}. {n} [loses|sells|gives away] {b}. How many {t} does {n} have[ now|]?",
                "From {n}'s {a} {t}, {b} were sold. How many {t} are left?")
        q = word(r, held, more if sign == "+" else less, n=who, a=str(a), b=str(b), t=things)
        return q, a, b, c, f"{who} has {c} {things}.", str(c)
    if x < 0.45:
        q = word(r, held, NAMED[sign], a=str(a), b=str(b))
    else:
        q = word(r, held, SUMS, a=str(a), b=str(b), w=SIGNS[sign], s="x" if sign == "*" and r.random() < 0.2 else sign)
    return q, a, b, c, f"{a} {SIGNS[sign]} {b} is {c}.", str(c)


def calculator(r: Rng, held: bool) -> Function:
    name = r.choice(("arithmetic", "math_tool", "do_math") if held else
                    ("calculator", "calculator", "calculate", "compute", "calc", "math", "evaluate", "eval_expression"))
    key = r.choice(("sum_text", "problem") if held else ("expression", "expression", "expr", "formula", "input", "term"))
    about = say(r, "[Computes|Calculates|Evaluates] [an arithmetic expression|a formula|an expression]" +
                   "[|: + - * / and parentheses| with + - * /|, such as 2 * (3 + 4)].")

    def ask(r: Rng) -> Use:
        sign = r.choice("++-**/")
        if r.random() < 0.2:
            a, b, c = (r.randint(2, 99) for _ in range(3))
            text_, value = r.choice(((f"({a} + {b}) * {c}", (a + b) * c), (f"{a} * {b} + {c}", a * b + c), (f"{a} + {b} + {c}", a + b + c),
                                     (f"{a} * ({b} + {c})", a * (b + c)), (f"{a} * {b} * {c}", a * b * c)))
            q = word(r, held, ("[What is {e}?|{e}|Compute {e}.|How much is {e}?|Calculate {e}.]", "Please work out {e}."), e=text_)
            return Use(q, {key: text_}, result(r, **{r.choice(("result", "value")): value}), f"The result is {value}.", str(value))
        q, a, b, c, answer, want = sum_question(r, held, sign)
        return Use(q, {key: f"{a} {sign} {b}"}, result(r, **{r.choice(("result", "result", "value", "answer")): c}), answer, want)

    return Function("calculator", name, spec(r, name, about, {key: text("such as (2 + 3) * 4")}), ask)


def two_numbers(r: Rng, held: bool) -> Function:
    """A calculator that takes two numbers and an operation."""
    x, y = r.choice((("a", "b"), ("x", "y"), ("first", "second"), ("left", "right")))
    key, names = r.choice((("operation", ("add", "subtract", "multiply", "divide")), ("operator", ("+", "-", "*", "/")), ("op", ("+", "-", "*", "/"))))
    signs = dict(zip("+-*/", names))
    name = r.choice(("binary_math", "number_tool") if held else ("calculator", "calculate", "compute", "arithmetic_operation", "math"))
    about = say(r, "[Computes|Calculates] with two numbers.")
    parameters = {x: number("the first number"), y: number("the second number"), key: {"type": "string", "enum": list(names)}}
    if r.random() < 0.3:
        parameters = {key: parameters[key], x: parameters[x], y: parameters[y]}

    def ask(r: Rng) -> Use:
        sign = r.choice("++-**/")
        q, a, b, c, answer, want = sum_question(r, held, sign)
        values = {x: a, y: b, key: signs[sign]}
        return Use(q, {k: values[k] for k in parameters}, result(r, **{r.choice(("result", "value")): c}), answer, want)

    return Function("calculator", name, spec(r, name, about, parameters), ask)


def one_operation(r: Rng, held: bool, sign: str | None = None) -> Function:
    """A function that only adds, or only multiplies."""
    sign = sign or r.choice("+-*/")
    verb = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}[sign]
    noun = {"+": "sum", "-": "difference", "*": "product", "/": "quotient"}[sign]
    name = f"compute_{noun}" if held else r.choice((verb, verb, verb + "_numbers", noun))
    x, y = r.choice((("a", "b"), ("x", "y"), ("first", "second"), ("n", "m")))
    about = {"+": "Adds two numbers.", "-": "Subtracts the second number from the first.", "*": "Multiplies two numbers.",
             "/": "Divides the first number by the second."}[sign]

    def ask(r: Rng) -> Use:
        q, a, b, c, answer, want = sum_question(r, held, sign)
        return Use(q, {x: a, y: b}, result(r, **{r.choice(("result", noun)): c}), answer, want)

    return Function("calculator " + sign, name, spec(r, name, about, {x: number("a number"), y: number("a number")}), ask)


# --------------------------------------------------------------------------- clocks

ZONES = {"Paris": "Europe/Paris", "London": "Europe/London", "Berlin": "Europe/Berlin", "Rome": "Europe/Rome", "Tokyo": "Asia/Tokyo",
         "Madrid": "Europe/Madrid", "Moscow": "Europe/Moscow", "Sydney": "Australia/Sydney", "Cairo": "Africa/Cairo",
         "Lima": "America/Lima", "Oslo": "Europe/Oslo", "Vienna": "Europe/Vienna", "Dublin": "Europe/Dublin", "Chicago": "America/Chicago"}
NOW: Words = ("[What time is it?|What time is it now?|What is the time?|Tell me the time.|Can you tell me the time?|what's the time|time?|Do you know what time it is?]",
              "[How late is it?|I would like to know the time.|Please check the clock.]")
THERE: Words = ("[What time is it in {c}?|What is the time in {c}?|Tell me the time in {c}.|What time do they have in {c}?|Time in {c}?]",
                "[How late is it in {c}?|Please check the clock for {c}.]")
DAY: Words = ("[What day is it today?|Which day is it?|What day of the week is it?|What day is today?]", "[Which weekday do we have?|Is today a Monday?]")
DATE: Words = ("[What is the date today?|What is the date?|What date is it?|Tell me the date.|Which date is today?]",
               "[Today's date, please.|I forgot the date. What is it?]")


def moment(r: Rng) -> tuple[str, str, str]:
    """Time, day of the week and date."""
    return (f"{r.randint(0, 23):02}:{r.randint(0, 59):02}", r.choice(corpus.DAYS),
            f"{r.randint(1, 28)} {r.choice(corpus.MONTHS)} {r.randint(2020, 2039)}")


def clock(r: Rng, held: bool) -> Function:
    name = r.choice(("watch", "local_time") if held else ("clock", "clock", "get_time", "current_time", "now", "time", "get_current_time", "date_and_time"))
    place = r.choice((None, "timezone", "timezone", "city", "place"))
    about = say(r, "[Tells|Returns|Gives] the [current |]date and time[| of a place].") if place else say(r, "[Tells|Returns] the [current |]date and time.")
    parameters = {place: text("IANA name such as Asia/Tokyo; without it, the user's own" if place == "timezone" else "a city")} if place else {}

    def ask(r: Rng) -> Use:
        time, day, date = moment(r)
        city = r.choice(list(ZONES)) if place and r.random() < 0.45 else None
        if place == "city" and city and r.random() < 0.4:
            city = cap(made_up(r))
        arguments = {place: ZONES[city] if place == "timezone" else city} if city else {}
        seconds = f"{time}:{r.randint(0, 59):02}"
        shown = r.choice((f"{day}, {date} at {seconds} {r.choice(('GMT+1', 'UTC', 'CET', 'GMT-5', 'JST'))}", f"{day}, {date}, {time}"))
        values = {r.choice(("time", "now")): shown}
        if r.random() < 0.4 and place:
            values["timezone"] = ZONES[city] if city in ZONES else "UTC"
        x = r.random()
        if city:
            q, a, key = word(r, held, THERE, c=city), f"It is {time} in {city}.", time
        elif x < 0.5:
            q, a, key = word(r, held, NOW), f"It is {time}.", time
        elif x < 0.75:
            q, a, key = word(r, held, DAY), f"Today is {day}.", day
            a = a if q != "Is today a Monday?" else ("Yes, today is Monday." if day == "Monday" else f"No, today is {day}.")
        else:
            q, a, key = word(r, held, DATE), f"Today is {date}.", date
        if "day" not in q and "date" not in q.lower() and r.random() < 0.3:
            values = {"time": time}
        return Use(q, arguments, result(r, **values), a, key)

    return Function("clock", name, spec(r, name, about, parameters, optional=(place,) if place else ()), ask)


# --------------------------------------------------------------------------- looking up

def town(r: Rng) -> str:
    return r.choice(corpus.CITIES) if r.random() < 0.5 else cap(made_up(r))


def someone(r: Rng) -> str:
    return person(r, r.random() < 0.5, 0.55)


def thing(r: Rng) -> str:
    return r.choice(corpus.OBJECTS) if r.random() < 0.6 else rare(r)


SKIES = "sunny cloudy rainy windy snowy foggy clear stormy".split()


def weather(r: Rng, held: bool) -> Function:
    name = r.choice(("forecast_service",) if held else ("weather", "get_weather", "weather_report", "forecast"))
    key = r.choice(("town",) if held else ("city", "city", "place", "location"))
    about = say(r, "[Tells|Returns] the weather [of|in] a [city|place].")

    def ask(r: Rng) -> Use:
        c, sky, t = town(r), r.choice(SKIES), r.randint(-15, 38)
        q = word(r, held, ("[What is the weather in {c}?|How is the weather in {c}?|What is the weather like in {c}?|Weather in {c}?|Tell me the weather in {c}.|Is it cold in {c}?]",
                           "[Do I need a coat in {c}?|How does the sky look in {c}?]"), c=c)
        return Use(q, {key: c}, result(r, **r.choice(({"sky": sky, "temperature": t}, {"temperature": t, "weather": sky}))),
                   f"It is {sky} in {c}, {t} degrees.", f"{sky} in {c}, {t}".lower())

    return Function("weather", name, spec(r, name, about, {key: text("a city")}), ask)


def phone(r: Rng, held: bool) -> Function:
    name = r.choice(("contact_card",) if held else ("phone_book", "find_number", "contacts", "get_phone_number", "lookup_contact"))
    key = r.choice(("of_whom",) if held else ("name", "person", "contact"))

    def ask(r: Rng) -> Use:
        n, digits = someone(r), f"{r.randint(100, 999)}-{r.randint(1000, 9999)}"
        q = word(r, held, ("[What is the phone number of {n}?|What is {n}'s phone number?|Find the number of {n}.|How can I call {n}?|I need the number of {n}.]",
                           "[I want to ring {n}. Which number is it?|Which number do I dial for {n}?]"), n=n)
        return Use(q, {key: n}, result(r, **{r.choice(("phone", "number")): digits}), f"The phone number of {n} is {digits}.", digits)

    return Function("phone", name, spec(r, name, say(r, "[Finds|Returns] the phone number of a person."), {key: text("a name")}), ask)


def price(r: Rng, held: bool) -> Function:
    name = r.choice(("shop_catalog",) if held else ("price", "get_price", "find_price", "shop", "price_list"))
    key = r.choice(("article",) if held else ("item", "product", "name"))

    def ask(r: Rng) -> Use:
        o, p = thing(r), r.randint(1, 400)
        money = r.choice(("euros", "dollars", "coins"))
        q = word(r, held, ("[How much does {o} cost?|What does {o} cost?|What is the price of {o}?|How much is {o}?]", "[How expensive is {o}?|What must I pay for {o}?]"), o=an(o))
        return Use(q, {key: o}, result(r, price=p, currency=money), f"{cap(an(o))} costs {p} {money}.", f"{p} {money}")

    return Function("price", name, spec(r, name, say(r, "[Tells|Returns] the price of [an item|a thing]."), {key: text("a thing")}), ask)


MEANINGS = ("a small {c} bird", "a kind of {c} hat", "a very old {o}", "to walk slowly", "a place to sleep", "a sweet {c} drink", "a {c} flower", "a loud noise",
            "to sing at night", "a tool to cut {o2}", "a big {c} {k}", "a game with {o2}", "the end of a day", "a warm wind", "a {k} that is asleep")


def meaning(r: Rng) -> str:
    return corpus.articles(r.choice(MEANINGS).format(c=r.choice(corpus.COLORS), o=r.choice(corpus.OBJECTS), o2=plural(r.choice(corpus.OBJECTS)), k=r.choice(corpus.KINDS)))


def dictionary(r: Rng, held: bool) -> Function:
    name = r.choice(("word_book",) if held else ("dictionary", "define", "get_definition", "lookup_word", "meaning"))
    key = r.choice(("entry",) if held else ("word", "word", "term"))

    def ask(r: Rng) -> Use:
        w, m = made_up(r), meaning(r)
        q = word(r, held, ("[What does {w} mean?|What is the meaning of {w}?|Define {w}.|What does the word {w} mean?|What is {a}?]", "[I read the word {w}. What is it?|Explain the word {w} to me.]"),
                 w=w, a=an(w))
        return Use(q, {key: w}, result(r, **{r.choice(("meaning", "definition")): m}), f"{cap(w)} means {m}.", m)

    return Function("dictionary", name, spec(r, name, say(r, "[Looks up|Tells|Returns] the meaning of a word."), {key: text("a word")}), ask)


def capital(r: Rng, held: bool) -> Function:
    name = r.choice(("country_info",) if held else ("capital", "get_capital", "capital_of", "find_capital"))
    key = r.choice(("nation",) if held else ("country", "country", "name"))

    def ask(r: Rng) -> Use:
        c = r.choice(corpus.COUNTRIES) if r.random() < 0.5 else cap(made_up(r))
        v = cap(made_up(r)) if r.random() < 0.7 else r.choice(corpus.CITIES)
        q = word(r, held, ("[What is the capital of {c}?|What is the capital city of {c}?|Tell me the capital of {c}.|Which city is the capital of {c}?]", "[Name the main city of {c}.|{c} has which capital?]"), c=c)
        return Use(q, {key: c}, result(r, capital=v), f"The capital of {c} is {v}.", v)

    return Function("capital", name, spec(r, name, say(r, "[Tells|Returns] the capital of a country."), {key: text("a country")}), ask)


def translate(r: Rng, held: bool) -> Function:
    name = r.choice(("interpreter",) if held else ("translate", "translate_word", "translator"))
    x, y = r.choice((("word", "language"), ("text", "language"), ("text", "target"), ("word", "to")))

    def ask(r: Rng) -> Use:
        w, lang, v = thing(r), r.choice(corpus.LANGS), made_up(r)
        q = word(r, held, ("[How do you say {w} in {l}?|What is {w} in {l}?|Translate {w} into {l}.|Translate the word {w} to {l}.|What is the {l} word for {w}?]",
                           "[I need {w} in {l}.|How would someone who speaks {l} call {w}?]"), w=w, l=lang)
        return Use(q, {x: w, y: lang}, result(r, **{r.choice(("translation", "result")): v}), f"{cap(w)} in {lang} is {v}.", v)

    return Function("translate", name, spec(r, name, say(r, "Translates a word into [another|a] language."), {x: text("what to translate"), y: text("a language")}), ask)


FACTS = ("{W} is {m}.", "{W} lived in {c} and made {o}.", "{W} was the first to paint {k}.", "{W} wrote a book about {o}.", "{W} is a town near {c}.", "{W} was born in {c}.",
         "{W} is known for {o} from {c}.")


def encyclopedia(r: Rng, held: bool) -> Function:
    name = r.choice(("knowledge_base",) if held else ("lookup", "lookup", "search", "encyclopedia", "wiki", "find", "look_up"))
    key = r.choice(("subject",) if held else ("name", "query", "topic", "title", "name"))

    def ask(r: Rng) -> Use:
        x = r.random()
        w = r.choice(corpus.FAMOUS) if x < 0.35 else f"{someone(r)} {cap(made_up(r))}" if x < 0.65 else cap(made_up(r))
        fact = corpus.articles(r.choice(FACTS).format(W=w, m=meaning(r), c=town(r), o=plural(r.choice(corpus.OBJECTS)), k=plural(r.choice(corpus.KINDS))))
        q = word(r, held, ("[Who was {w}?|Who is {w}?|Tell me about {w}.|What do you know about {w}?|Look up {w}.|Look up {w}, please.|Search for {w}.]",
                           "[Can you find out who {w} was?|I want to read about {w}.]"), w=w)
        return Use(q, {key: w}, result(r, **{r.choice(("text", "result", "summary")): fact}), fact, fact)

    return Function("lookup", name, spec(r, name, say(r, "[Looks up|Finds|Returns] [an article|what is known] about a name[| or a thing]."), {key: text("what to look up")}), ask)


# --------------------------------------------------------------------------- acting

def timer(r: Rng, held: bool) -> Function:
    name = r.choice(("countdown",) if held else ("set_timer", "timer", "start_timer"))
    key = r.choice(("minutes", "minutes", "duration_minutes"))

    def ask(r: Rng) -> Use:
        n = r.randint(2, 90)
        q = word(r, held, ("[Set a timer for {n} minutes.|Start a timer of {n} minutes.|Timer, {n} minutes.|Set the timer to {n} minutes.]", "[Wake me in {n} minutes.|Tell me when {n} minutes are over.]"), n=str(n))
        return Use(q, {key: n}, result(r, status=r.choice(("ok", "started", "done"))), f"The timer is set for {n} minutes.", f"{n} minutes")

    return Function("timer", name, spec(r, name, say(r, "[Sets|Starts] a timer."), {key: number("how long", "integer")}), ask)


MESSAGES = ("dinner is ready", "I am late", "the train is here", "I love the {k}", "the {o} is in the {p}", "we meet at the {p}", "I found the {o}", "it is raining", "I have the {o}")


def message(r: Rng, held: bool) -> Function:
    name = r.choice(("deliver_note",) if held else ("send_message", "message", "send_text", "text_message"))
    x, y = r.choice((("to", "text"), ("name", "message"), ("recipient", "text"), ("to", "message")))

    def ask(r: Rng) -> Use:
        n, m = someone(r), r.choice(MESSAGES).format(k=plural(r.choice(corpus.KINDS)), o=r.choice(corpus.OBJECTS), p=r.choice(corpus.PLACES))
        q = word(r, held, ("[Tell {n} that {m}.|Send {n} a message: {m}|Write to {n} that {m}.|Send a message to {n}: {m}|Please tell {n} that {m}.]", "[Let {n} know that {m}.|{n} should hear that {m}.]"), n=n, m=m)
        return Use(q, {x: n, y: m}, result(r, status=r.choice(("ok", "sent"))), f"I told {n} that {m}.", m)

    return Function("message", name, spec(r, name, "Sends a message to a person.", {x: text("a name"), y: text("the message")}), ask)


ROOMS = "kitchen bedroom garage bathroom hall office cellar attic".split()


def switch(r: Rng, held: bool) -> Function:
    device = r.choice(("lamp", "heater") if held else ("light", "radio", "fan", "television"))
    name = r.choice(("set_{d}", "switch_{d}", "{d}_switch", "{d}")).format(d=device)
    x, y = r.choice((("room", "on"), ("place", "on"), ("room", "state"), ("room", "turned_on")))

    def ask(r: Rng) -> Use:
        room, on = r.choice(ROOMS), r.random() < 0.5
        s = "on" if on else "off"
        q = word(r, held, ("[Turn {s} the {d} in the {p}.|Switch the {d} in the {p} {s}.|Turn the {d} in the {p} {s}.|{S} with the {d} in the {p}.]", "[I want the {d} in the {p} {s}.]"), s=s, S=cap(s), d=device, p=room)
        return Use(q, {x: room, y: on}, result(r, status="ok"), f"The {device} in the {room} is {s}.", f"is {s}")

    return Function("switch " + device, name, spec(r, name, f"Turns the {device} of a room on or off.", {x: text("a room"), y: {"type": "boolean"}}), ask)


# --------------------------------------------------------------------------- any attribute of anything

ATTRIBUTES = {  # how its value looks; those of the second table are for the exam alone
    False: {"height": "number", "age": "number", "color": "color", "owner": "name", "weight": "number", "birthday": "date", "address": "street", "email": "mail", "job": "word",
            "teacher": "name", "size": "number", "title": "word", "author": "name", "password": "word", "code": "code", "length": "number", "speed": "number", "nickname": "word",
            "home": "town", "doctor": "name", "population": "number", "river": "town", "score": "number", "shelf": "number", "driver": "name", "status": "word", "sister": "name"},
    True: {"salary": "number", "captain": "name", "depth": "number", "village": "town", "label": "code", "brother": "name"},
}


def value(r: Rng, kind: str) -> Any:
    return {"number": lambda: r.randint(2, 9999), "color": lambda: r.choice(corpus.COLORS), "name": lambda: someone(r), "town": lambda: town(r),
            "word": lambda: made_up(r), "date": lambda: f"{r.randint(1, 28)} {r.choice(corpus.MONTHS)}", "street": lambda: f"{cap(made_up(r))} Street {r.randint(1, 99)}",
            "mail": lambda: f"{made_up(r)}@{made_up(r)}.org", "code": lambda: f"{cap(made_up(r))}-{r.randint(10, 999)}"}[kind]()


def attribute(r: Rng, held: bool, name: str | None = None) -> Function:
    noun = name or r.choice(list(ATTRIBUTES[held]))
    function = r.choice(("get_{a}", "get_{a}", "find_{a}", "{a}_of", "lookup_{a}", "{a}", "read_{a}")).format(a=noun)
    key = r.choice(("name", "name", "id", "of", "query", "item", "who", "key"))
    about = say(r, "[Returns|Tells|Finds|Looks up|Gets] the {a} of [a name|someone or something|an entry|a person or thing].", a=noun)

    def ask(r: Rng) -> Use:
        n = someone(r) if r.random() < 0.7 else cap(made_up(r)) + " " + cap(made_up(r))
        v = value(r, ATTRIBUTES[held][noun])
        q = word(r, held, ("[What is the {a} of {n}?|What is {n}'s {a}?|Tell me the {a} of {n}.|Find the {a} of {n}.|Look up the {a} of {n}.|I need the {a} of {n}.|{a} of {n}?]",
                           "[Do you know which {a} {n} has?|Please get me {n}'s {a}.]"), a=noun, n=n)
        return Use(q, {key: n}, result(r, **{r.choice((noun, noun, "value", "result")): v}), f"The {noun} of {n} is {v}.", str(v))

    return Function(noun, function, spec(r, function, about, {key: text("a name")}), ask)


FAMILIES: list[tuple[float, Callable[[Rng, bool], Function]]] = [
    (14, calculator), (4, two_numbers), (4, one_operation), (10, clock), (5, weather), (3, phone), (3, price), (4, dictionary), (3, capital), (2.5, translate), (7, encyclopedia),
    (2, timer), (3, message), (2.5, switch), (18, attribute)]


def draw(r: Rng, n: int, held: bool) -> list[Function]:
    """Functions that do not do the same."""
    out: list[Function] = []
    while len(out) < n:
        f = r.choices([make for _, make in FAMILIES], [w for w, _ in FAMILIES])[0](r, held)
        clash = any(f.name == g.name or f.family == g.family or {f.family.split()[0], g.family.split()[0]} == {"calculator"} and "calculator" in (f.family, g.family) for g in out)
        if not clash:
            out.append(f)
    return out


# --------------------------------------------------------------------------- conversations

def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
    """A conversation in the form of Qwen3's template without thoughts."""
    out, rest = "", messages
    if tools:
        system = messages[0]["content"] + "\n\n" if messages[0]["role"] == "system" else ""
        rest = messages[1:] if system else messages
        out = ("<|im_start|>system\n" + system + "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
               "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n" + "\n".join(json.dumps(t) for t in tools) +
               "\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n"
               '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n')
    for i, m in enumerate(rest):
        if m["role"] == "tool":
            first = i == 0 or rest[i - 1]["role"] != "tool"
            last = i + 1 == len(rest) or rest[i + 1]["role"] != "tool"
            out += ("<|im_start|>user" if first else "") + "\n<tool_response>\n" + m["content"] + "\n</tool_response>" + ("<|im_end|>\n" if last else "")
            continue
        calls = [f"<tool_call>\n{json.dumps(c)}\n</tool_call>" for c in m.get("tool_calls", ())]
        out += f"<|im_start|>{m['role']}\n" + "\n".join([m["content"]] * bool(m["content"]) + calls) + "<|im_end|>\n"
    return out


SUMMING = {"addition", "subtraction", "big numbers", "big numbers 2", "word sums", "double", "compare numbers", "counting"}
UNSURE = {"unknown", "unknown thing", "tasks", "statements", "story", "nonsense", "unknown opposite"}


def plain_turn(r: Rng, functions: list[Function]) -> corpus.Turn:
    """A question that is answered without any of the functions."""
    while True:
        t = corpus.pick(r, "story" if r.random() < 0.06 and len(functions) == 1 else None)
        if t.topic == "story" and len(t.answer) < 900:
            return t
        if t.topic in SUMMING or t.topic in UNSURE or len(t.answer) > 120:
            continue
        return t


def without_fit(r: Rng, functions: list[Function]) -> corpus.Turn | None:
    """A question for a function that is not there."""
    if any(f.family == "lookup" for f in functions):
        return None
    there = {f.family.split()[0] for f in functions}
    for _ in range(8):
        f = r.choices([make for _, make in FAMILIES], [w for w, _ in FAMILIES])[0](r, False)
        if f.family.split()[0] not in there | {"calculator"}:
            use = f.ask(r)
            if use.user.startswith(("What is a ", "What is an ")):
                continue
            acts = f.family.split()[0] in ("timer", "message", "switch")
            answer = "I cannot do that. I can tell short stories and answer simple questions." if acts else corpus.DONT
            return corpus.Turn(use.user, answer, "cannot" if acts else "do not know", "no function")
    return None


class Chat(NamedTuple):
    tools: list[dict[str, Any]]
    messages: list[dict[str, Any]]


def use_turns(f: Function, use: Use) -> list[dict[str, Any]]:
    if use.arguments is None:
        return [{"role": "user", "content": use.user}, {"role": "assistant", "content": use.answer}]
    return [{"role": "user", "content": use.user}, {"role": "assistant", "content": "", "tool_calls": [call(f.name, use.arguments)]},
            {"role": "tool", "content": use.result}, {"role": "assistant", "content": use.answer}]


def both(f: Function, a: Use, b: Use) -> list[dict[str, Any]]:
    """Two questions at once: two calls in one reply."""
    q = a.user + " " + b.user
    return [{"role": "user", "content": q}, {"role": "assistant", "content": "", "tool_calls": [call(f.name, a.arguments or {}), call(f.name, b.arguments or {})]},
            {"role": "tool", "content": a.result}, {"role": "tool", "content": b.result}, {"role": "assistant", "content": a.answer + " " + b.answer}]


def chat(r: Rng, most: int = 3) -> Chat:
    functions = draw(r, r.choices((1, 2, 3), (50, 32, 18))[0] if most > 2 else 1, False)
    messages: list[dict[str, Any]] = []
    if r.random() < 0.15:
        messages.append({"role": "system", "content": r.choice(corpus.SYSTEMS)})
    for _ in range(r.choices((1, 2, 3), (55, 30, 15))[0]):
        x = r.random()
        f = r.choice(functions)
        if x < 0.62:
            use = f.ask(r)
            use = use._replace(user=corpus.casual(r, use.user)) if f.family not in ("message",) else use
            use = failed(r, use) if r.random() < 0.05 else use
            b = f.ask(r)
            if r.random() < 0.05 and f.family != "clock" and use.user[-1:] in "?." and len(use.user) + len(b.user) < 90:
                messages += both(f, use, b)
            else:
                messages += use_turns(f, use)
            continue
        t = (without_fit(r, functions) if x < 0.77 else None) or plain_turn(r, functions)
        messages += [{"role": "user", "content": corpus.casual(r, t.user)}, {"role": "assistant", "content": t.answer}]
    return Chat([f.spec for f in functions], messages)


def document(r: Rng, most: int = 3) -> str:
    c = chat(r, most)
    return render(c.messages, c.tools)


# --------------------------------------------------------------------------- exam

class Question(NamedTuple):
    topic: str
    tools: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    call: dict[str, Any] | None        # the call that is right; None for a direct answer
    result: str
    key: str


def exam(seed: int, per_topic: int) -> list[Question]:
    """Per kind of function: in words of the training, in unseen words, and with unseen names among other functions; and direct answers."""
    r = Rng(seed)
    out: list[Question] = []
    for kind, makers in {"calculator": (calculator, two_numbers, one_operation), "clock": (clock,), "lookup": (encyclopedia, dictionary, capital, weather, phone),
                         "attribute": (attribute,), "action": (timer, message, switch)}.items():
        for held, label in ((False, ""), (True, ", new words")):
            for i in range(per_topic):
                f = makers[i % len(makers)](r, held)
                use = f.ask(r)
                others = [g for g in draw(r, i % 3 + 1, False) if g.name != f.name and g.family.split()[0] != f.family.split()[0]][:i % 3]
                functions = [f, *others]
                r.shuffle(functions)
                out.append(Question(kind + label, [g.spec for g in functions], [{"role": "user", "content": use.user}], call(f.name, use.arguments or {}), use.result, use.key))
    for i in range(per_topic):
        functions = draw(r, i % 3 + 1, False)
        t = plain_turn(r, functions)
        while not t.key or t.key == "?|!|.":
            t = plain_turn(r, functions)
        out.append(Question("direct answer", [f.spec for f in functions], [{"role": "user", "content": t.user}], None, "", t.key))
    i = 0
    while i < per_topic:
        functions = draw(r, 1, False)
        t = without_fit(r, functions)
        if t:
            i += 1
            out.append(Question("no fitting function", [f.spec for f in functions], [{"role": "user", "content": t.user}], None, "", t.key or ""))
    return out
