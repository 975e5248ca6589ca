"""The pieces that a chart's text consists of, as patterns that are tried at one place.

Each is written so that it fails or ends in time linear in what it looks at.
"""

from __future__ import annotations

import re

from sequencer.resolution.flowcharts.letters import letter_class
from sequencer.resolution.flowcharts.preparation import SPACES, S

# What is tried before anything else outside of labels; the name of a group is the kind.
WORDS = re.compile(
    rf"""accTitle{S}*:{S}*(?P<ACC_TITLE>)|accDescr{S}*:{S}*(?P<ACC_DESCR>)
    |accDescr{S}*\{{{S}*(?P<ACC_BLOCK>)|@\{{(?P<SHAPE_DATA>)|call{S}+(?P<CALL>)
    |"`(?P<MARKDOWN>)|"(?P<QUOTE>)|style\b(?P<STYLE>)|default\b(?P<DEFAULT>)
    |linkStyle\b(?P<LINKSTYLE>)|interpolate\b(?P<INTERPOLATE>)|classDef\b(?P<CLASSDEF>)
    |class\b(?P<CLASS>)|href{S}(?P<HREF>)|click{S}+(?P<CLICK>)
    |(?:flowchart-elk|swimlane-beta|graph|flowchart)\b(?P<GRAPH>)
    |subgraph\b(?P<SUBGRAPH>)|end\b{S}*(?P<END>)|_(?:self|blank|parent|top)\b(?P<LINK_TARGET>)""",
    re.ASCII | re.VERBOSE,
)
BLANK = frozenset(SPACES)
WORD_STARTS = frozenset('aAcC@"sdliIhfgSe_')
WORD_MODES = {
    "ACC_TITLE": "title", "ACC_DESCR": "title", "ACC_BLOCK": "description",
    "SHAPE_DATA": "shape_data", "CALL": "callback", "MARKDOWN": "markdown",
    "QUOTE": "string", "CLICK": "click",
}  # fmt: skip
DIRECTION = re.compile(rf"direction{S}+(TB|BT|RL|LR|TD)")
LINE_END = re.compile(r"[\n\u2028\u2029]")
RUN = re.compile(rf'[^"{SPACES}]+')
BLANKS = re.compile(rf"{S}+")
LINE = re.compile(
    rf"""[xo<]?--+[-xo>]{S}*(?P<LINK>)|[xo<]?--{S}*(?P<NORMAL>)
    |[xo<]?==+[=xo>]{S}*(?P<LINK2>)|[xo<]?=={S}*(?P<THICK>)
    |[xo<]?-?\.+-[xo>]?{S}*(?P<LINK3>)|[xo<]?-\.{S}*(?P<DOTTED>)|~~~+{S}*(?P<LINK4>)""",
    re.VERBOSE,
)
LINE_STARTS = frozenset("xo<-=.~")
NODE = re.compile(r"""(?:[A-Za-z0-9!"#$%&'*+.`?\\_/]|-(?=[^>.-]))+""")
NODE_STARTS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!$%'+.`?\\_/-")
NUMBER = re.compile(r"[0-9]+")
LETTER = re.compile(f"[{letter_class()}]")
BRACKET = re.compile(r"\(\(\(|\(-|\(\[|\[\[|\[\(|\[/|\[\\|\||\(|\[|\{")
LABEL_BRACKET = re.compile(r"\(-|\]\)|\(\[|\]\]|\[\[|\)\]|\[\(|\)\)\)|\(\(\(|\[/|\[\\|[|()\[\]{}]")
LABEL = re.compile(r'[^\[\](){}|"]+')
TILDES = re.compile(rf"{S}*~~~+{S}*")
DIRECTIONS = re.compile(rf"{S}*(?:LR|RL|TB|BT|TD|BR|v)\b|{S}*[<>^]", re.ASCII)
NO_DIRECTION = re.compile(rf"{S}*\n")
SINGLE = {
    ":": "COLON", "&": "AMP", ";": "SEMI", ",": "COMMA", "*": "MULT", "#": "BRKT",
    "<": "TAGSTART", ">": "TAGEND", "^": "UP", "-": "MINUS",
}  # fmt: skip
EDGE_TEXT = {
    "normal": re.compile(r'(?:[^-"]|-(?!-))+'),
    "thick": re.compile(r'[^="]+'),
    "dotted": re.compile(r'[^."]+'),
}
EDGE_END = {
    "normal": re.compile(rf"{S}*[xo<]?--+[-xo>]{S}*"),
    "thick": re.compile(rf"{S}*[xo<]?==+[=xo>]{S}*"),
    "dotted": re.compile(rf"{S}*[xo<]?-?\.+-[xo>]?{S}*"),
}
IN_STRING = re.compile(r'[^"]+')
IN_MARKDOWN = re.compile(r'[^`"]+')
IN_SHAPE_DATA = re.compile(r'[^}^"]+')
ELLIPSE = re.compile(rf'[^()\[\]{{}}"~/{SPACES}-]+')
SLANTED = re.compile(r"[^\\\[\](){}/]+")
NOT_BLANK = re.compile(f"[^{SPACES}]+")
NO_ARGUMENTS = re.compile(rf"\({S}*\)")
NEW_LINE = re.compile(rf"\n{S}*")

_PLAIN = r'[A-Za-z0-9][^\[\](){}|"]*'
QUICK_NODE = re.compile(
    rf"""([A-Za-z_][A-Za-z0-9_]*)
    (?:\[(?:"([^"`]+)"|({_PLAIN}))\]
    |\((?:"([^"`]+)"|({_PLAIN}))\)
    |\(\((?:"([^"`]+)"|({_PLAIN}))\)\)
    |\{{(?:"([^"`]+)"|({_PLAIN}))\}}
    |\{{\{{(?:"([^"`]+)"|({_PLAIN}))\}}\}})?(?=[ \n;])""",
    re.VERBOSE,
)
"""A node in the forms that leave no doubt: the id, then two groups for each of these shapes."""
QUICK_SHAPES = ("square", "round", "circle", "diamond", "hexagon")
QUICK_LINK = re.compile(
    rf"""[ ](-->|---|-\.->|==>)
    (?:[ ](?=[A-Za-z_])|[ ]?\|(?:"([^"`]+)"|({_PLAIN}))\|[ ]?(?=[A-Za-z_]))""",
    re.VERBOSE,
)
"""A line in the forms that leave no doubt."""
NO_QUICK_NODE = frozenset(
    [
        "style",
        "linkStyle",
        "interpolate",
        "classDef",
        "class",
        "graph",
        "flowchart",
        "subgraph",
        "end",
        "_self",
        "_blank",
        "_parent",
        "_top",
        "call",
        "click",
        "href",
        "accTitle",
        "accDescr",
    ]
)
"""Words that are no ids, or not always."""
