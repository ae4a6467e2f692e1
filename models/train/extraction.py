"""JSON from short texts: what a text says of people, things and lists, under the keys that are asked for.

The answer has no spaces between its parts: that is the form in which the runtime writes JSON by a schema.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import corpus
from corpus import NUMBERS, Rng, an, cap, listing, made_up, person, plural, rare, say

JOBS = "baker teacher doctor farmer painter driver singer sailor gardener builder nurse writer cook pilot dancer judge tailor hunter miner".split()
HOBBIES = "music chess soup books football tea singing dancing painting swimming cheese trains rain snow stories apples".split()


class Fact(NamedTuple):
    key: str
    sentence: str      # a whole sentence with {N} or {He} as its subject
    value: Any


def town(r: Rng) -> str:
    return r.choice(corpus.CITIES) if r.random() < 0.45 else cap(made_up(r))


def integer(r: Rng, n: int) -> str:
    return NUMBERS[n] if n <= 20 and r.random() < 0.4 else str(n)


# The subject S is a name or a pronoun. Keys that mean the same; the last ones of each are for the exam alone.
SAME = {"city": (("city", "city", "town", "home", "place"), ("lives_in",)), "age": (("age", "age", "years"), ("how_old",)), "job": (("job", "job", "work", "profession"), ("occupation",)),
        "color": (("color", "favorite_color"), ("color_liked",)), "likes": (("likes", "hobby", "likes"), ("loves",)), "animal": (("animal", "pet"), ("kind_of_pet",)),
        "pet_name": (("pet_name", "animal_name"), ("name_of_pet",)), "friend": (("friend", "best_friend"), ("companion",)), "has_pet": (("has_pet", "has_animal"), ("owns_pet",)),
        "married": (("married", "is_married"), ("has_partner",)), "email": (("email", "mail"), ("mail_address",)), "day": (("day", "weekday"), ("on_day",)),
        "count": (("count", "number", "amount"), ("how_many",)), "item": (("item", "thing", "product"), ("article",)), "price": (("price", "cost"), ("to_pay",)),
        "place": (("place", "location", "where"), ("spot",)), "time": (("time", "time", "at"), ("clock_time",)), "name": (("name", "name", "name", "person", "who"), ("first_name",))}


def keyed(r: Rng, key: str, held: bool) -> str:
    return r.choice(SAME[key][held]) if key in SAME else key


def about_person(r: Rng, name: str) -> list[Fact]:
    city, job, n = town(r), r.choice(JOBS), r.randint(3, 99)
    color, hobby = r.choice(corpus.COLORS), r.choice(HOBBIES)
    pet, pet_name, friend = r.choice("cat dog horse rabbit duck goat pony mouse".split()), cap(made_up(r)) if r.random() < 0.5 else r.choice(corpus.PETS), person(r, r.random() < 0.5, 0.5)
    mail = f"{made_up(r)}@{made_up(r)}.org"
    has, married = r.random() < 0.5, r.random() < 0.5
    pet_fact = r.choice([
        [Fact("animal", f"S has {an(pet)}.", pet)],
        [Fact("animal", f"S has {an(pet)} named {pet_name}.", pet), Fact("pet_name", "", pet_name)],
        [Fact("has_pet", f"S has {'a pet' if has else 'no pets'}.", has)],
    ])
    facts = [Fact("age", say(r, "[S is {n} years old.|S is {n}.|S turned {n} this year.]", n=integer(r, n)), n),
             Fact("city", say(r, "[S lives in {c}.|S comes from {c}.|S moved to {c}.|S is from {c}.]", c=city), city),
             Fact("job", say(r, "[S is {j}.|S works as {j}.]", j=an(job)), job),
             Fact("color", say(r, "[S likes the color {c}.|S loves {c} things.|S painted the door {c}.]", c=color), color),
             Fact("likes", say(r, "[S likes {h}.|S loves {h}.|S enjoys {h}.]", h=hobby), hobby),
             Fact("friend", say(r, "[S plays with {f}.|S is a friend of {f}.|S has a friend named {f}.]", f=friend), friend),
             Fact("married", f"S is {'' if married else 'not '}married.", married),
             Fact("email", say(r, "[S can be reached at {m}.|S writes from {m}.]", m=mail), mail)]
    i = r.randrange(len(facts) + 1)
    return facts[:i] + pet_fact + facts[i:]


class Text(NamedTuple):
    text: str
    values: dict[str, Any]


def person_text(r: Rng) -> Text:
    girl = r.random() < 0.5
    name = person(r, girl, 0.5)
    all_ = about_person(r, name)
    groups: list[list[Fact]] = []
    for f in all_:
        if f.sentence:
            groups.append([f])
        else:
            groups[-1].append(f)
    groups = r.sample(groups, r.choices((1, 2, 3, 4), (15, 35, 35, 15))[0])
    he = "She" if girl else "He"
    values: dict[str, Any] = {"name": name}
    sentences = []
    for i, g in enumerate(groups):
        subject = name if i == 0 or r.random() < 0.15 else he
        sentences.append((i, g[0].sentence.replace("S ", subject + " ", 1)))
        values |= {f.key: f.value for f in g}
    parts = [s for _, s in sentences]
    if len(parts) > 1 and r.random() < 0.35 and parts[1].startswith(he + " "):
        parts[:2] = [parts[0][:-1] + " and " + parts[1][len(he) + 1:]]
    return Text(" ".join(parts), values)


def order_text(r: Rng) -> Text:
    n, o, p = r.randint(2, 60), rare(r) if r.random() < 0.4 else r.choice(corpus.OBJECTS), r.randint(1, 300)
    who, shop = person(r, r.random() < 0.5, 0.5), town(r)
    t = say(r, "[{w} bought {n} {os} for {p} euros in {c}.|{w} ordered {n} {os} from {c}. They cost {p} euros.|In {c}, {w} paid {p} euros for {n} {os}.]", w=who, n=integer(r, n), os=plural(o), p=str(p), c=shop)
    return Text(t, {"name": who, "count": n, "item": plural(o), "price": p, "city": shop})


def event_text(r: Rng) -> Text:
    day, place, time, who = r.choice(corpus.DAYS), r.choice(corpus.PLACES), f"{r.randint(0, 23)}:{r.randint(0, 59):02}", person(r, r.random() < 0.5, 0.5)
    t = say(r, "[We meet {w} on {d} at {t} near the {p}.|On {d} at {t}, {w} waits at the {p}.|{w} comes to the {p} on {d} at {t}.|The party of {w} is on {d} at the {p}. It begins at {t}.]", w=who, d=day, t=time, p=place)
    return Text(t, {"name": who, "day": day, "place": place, "time": time})


def objects_of(r: Rng, n: int) -> list[str]:
    return [rare(r) if r.random() < 0.35 else r.choice(corpus.OBJECTS + corpus.CATEGORY["fruit"]) for _ in range(n)]


# --------------------------------------------------------------------------- the request

Words = tuple[str, str]
ASK: Words = ("[Extract {k} as JSON|Write {k} as JSON|Give me {k} as JSON|Get {k} from this text as JSON|Return JSON with {k}|Find {k} and write JSON|JSON with {k}]",
              "[Put {k} into a JSON object|As a JSON object with {k}, please|Turn this into JSON with {k}]")
ASK_KEYS: Words = ("[Write JSON with the keys {k}|JSON, keys {k}|Use the keys {k} and write JSON|Extract as JSON with the keys {k}|Fill a JSON object with the keys {k}]",
                   "[The keys of the JSON are {k}|I want a JSON object whose keys are {k}]")


def key_words(keys: list[str]) -> str:
    return listing([("the " if i == 0 else "") + k.replace("_", " ") for i, k in enumerate(keys)])


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


class Extraction(NamedTuple):
    system: str | None
    user: str
    answer: str
    schema: dict[str, Any]


def schema_of(value: Any) -> dict[str, Any]:
    """The JSON Schema of a value: its properties are required, and there are no others."""
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int):
        return {"type": "integer"}
    if isinstance(value, str):
        return {"type": "string"}
    if isinstance(value, list):
        return {"type": "array", "items": schema_of(value[0]) if value else {"type": "string"}}
    if value is None:
        return {"type": ["string", "null"]}
    return {"type": "object", "properties": {k: schema_of(v) for k, v in value.items()}, "required": list(value), "additionalProperties": False}


def request(r: Rng, held: bool, keys: list[str], text: str) -> tuple[str | None, str]:
    """System message, if the keys are there, and what the user says."""
    x = r.random()
    named = ", ".join(keys)
    if x < 0.5 or any("_" in k for k in keys) and x < 0.2:
        q = say(r, ASK[held], k=key_words(keys))
    else:
        q = say(r, ASK_KEYS[held], k=named)
    y = r.random()
    if y < 0.12 and not held:
        return say(r, "[Reply in JSON with the keys {k}.|You write JSON with the keys {k}.|Answer with JSON: {k}.]", k=named), text
    if y < 0.65:
        return None, f"{q}: {text}"
    if y < 0.85:
        return None, f"{q}.\n{text}"
    return None, f"{text}\n{q}."


def extraction(r: Rng, held: bool = False) -> Extraction:
    x = r.random()
    if x < 0.62:
        t = person_text(r) if x < 0.38 else order_text(r) if x < 0.52 else event_text(r)
        keys = [k for k in t.values if k == "name" or r.random() < 0.8]
        if len(keys) > 1 and r.random() < 0.2:
            keys.remove("name")
        keys = keys[:4]
        if r.random() < 0.3:
            r.shuffle(keys)
        named = {k: keyed(r, k, held and r.random() < 0.4) for k in keys}
        if len(set(named.values())) < len(named):
            named = {k: k for k in keys}
        value: dict[str, Any] = {named[k]: t.values[k] for k in keys}
        if r.random() < 0.1:
            absent = r.choice([k for k in ("age", "city", "email", "job", "price", "day") if k not in t.values] or ["phone"])
            value[absent] = None
        text = t.text
    elif x < 0.74:                                          # a list of names or things
        if r.random() < 0.5:
            names = [person(r, r.random() < 0.5, 0.5) for _ in range(r.randint(2, 4))]
            text = say(r, "[{l} went to the {p}.|{l} are friends.|Yesterday {l} came to the {p}.|I know {l}.]", l=listing(names), p=r.choice(corpus.PLACES))
            value = {r.choice(("friends", "names", "people") if not held else ("guests",)): names}
        else:
            things = objects_of(r, r.randint(2, 4))
            text = say(r, "[Please buy {l}.|We need {l}.|In the box there are {l}.|I have {l}.|{n} has {l}.]", l=listing([an(x) for x in things]), n=person(r, r.random() < 0.5, 0.5))
            value = {r.choice(("items", "things", "list") if not held else ("goods",)): things}
    elif x < 0.84:                                          # counted things
        things = list(dict.fromkeys(objects_of(r, r.randint(2, 3))))
        counts = [r.randint(2, 20) for _ in things]
        text = say(r, "[I have {l}.|We need {l}.|There are {l} in the shop.|Please bring {l}.]", l=listing([f"{integer(r, n)} {plural(x)}" for n, x in zip(counts, things)]))
        value = {plural(x): n for x, n in zip(things, counts)}
    elif x < 0.92:                                          # several people
        who = [person(r, r.random() < 0.5, 0.5) for _ in range(2)]
        ages, towns = [r.randint(3, 90) for _ in who], [town(r) for _ in who]
        if r.random() < 0.5:
            text = " ".join(say(r, "[{n} is {a} years old.|{n} is {a}.]", n=n, a=integer(r, a)) for n, a in zip(who, ages))
            value = {"people": [{"name": n, "age": a} for n, a in zip(who, ages)]}
            keys = "name, age"
        else:
            text = " ".join(say(r, "[{n} lives in {t}.|{n} comes from {t}.]", n=n, t=t) for n, t in zip(who, towns))
            value = {"people": [{"name": n, "city": t} for n, t in zip(who, towns)]}
            keys = "name, city"
        q = word(r, held, ("[Write a JSON list of people with the keys {k}|List the people as JSON with {k}|JSON, people with {k}]", "[Collect everyone as JSON with {k}]"), keys)
        return Extraction(None, f"{q}: {text}", compact(value), schema_of(value))
    else:                                                   # yes or no
        a, b = person(r, True, 0.5), person(r, False, 0.5)
        o, p = r.choice(corpus.OBJECTS), r.choice(corpus.OBJECTS)
        has = r.random() < 0.5
        text = say(r, "[{a} has {o}.|{a} found {o}.]" if has else "[{a} has no {n}.|{a} lost the {n}.]", a=a, o=an(o), n=o) + ("" if r.random() < 0.5 else f" {b} has {an(p)}.")
        value = {"name": a, f"has_{o}": has}
    system, user = request(r, held, list(value), text)
    return Extraction(system, user, compact(value), schema_of(value))


def word(r: Rng, held: bool, words: Words, keys: str) -> str:
    return say(r, words[held], k=keys)


def document(r: Rng) -> str:
    messages: list[tuple[str, str]] = []
    for i in range(r.choices((1, 2), (80, 20))[0]):
        e = extraction(r)
        if e.system and i == 0:
            messages.append(("system", e.system))
        elif e.system:
            break
        messages += [("user", e.user), ("assistant", e.answer)]
    return corpus.chatml(messages)


def exam(seed: int, count: int) -> list[tuple[str, Extraction]]:
    """Questions in words of the training, and in unseen words and keys."""
    r = Rng(seed)
    return [(label, extraction(r, held)) for held, label in ((False, "json"), (True, "json, new words")) for _ in range(count)]
