"""record-terminal.py SVG PROGRAM MESSAGE...: runs `PROGRAM chat` in a pseudo-terminal, sends the messages, and writes the
screen after the last reply as an SVG picture."""

import io
import re
import sys
from itertools import groupby

import pexpect
import pyte
from rich.console import Console
from rich.text import Text

COLUMNS, ROWS = 88, 40
svg, program, *messages = sys.argv[1:]

screen = pyte.Screen(COLUMNS, ROWS)
stream = pyte.Stream(screen)
# As a reader would type it, without the path of the program.
stream.feed("$ shohin chat --seed 1\r\n")
child = pexpect.spawn(
    program, ["chat", "--seed", "1"], dimensions=(ROWS, COLUMNS), encoding="utf-8", timeout=120,
    env={"TERM": "xterm-256color", "PATH": "/usr/bin:/bin"},
)


def feed_until(pattern):
    child.expect(pattern)
    stream.feed(child.before + child.after)


# The prompt and nothing after it but escape sequences.
PROMPT = r">(\x1b\[[0-9;?]*m)* (\r|\x1b\[[0-9;?]*[a-zA-Z])*$"
feed_until(PROMPT)
for message in messages:
    child.send(message + "\r")
    feed_until(r"\n")
    feed_until(PROMPT)
child.sendeof()
child.wait()


def style(cell):
    names = {"brown": "yellow"}  # pyte's name of colour 3
    colour = "default" if cell.fg == "default" else names.get(cell.fg, cell.fg)
    colour = f"#{colour}" if re.fullmatch("[0-9a-f]{6}", colour) else colour.replace("bright", "bright_")
    return f"{'bold ' if cell.bold else ''}{colour}"


console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
lines = []
for row in range(ROWS):
    line = Text()
    for look, cells in groupby((screen.buffer[row][column] for column in range(COLUMNS)), style):
        line.append("".join(cell.data for cell in cells), look)
    line.rstrip()
    lines.append(line)
while lines and lines[-1].plain.strip() in ("", ">"):
    lines.pop()
for line in lines:
    console.print(line)
console.save_svg(svg, title="shohin chat")
