"""Numbers of the slop policy, the host's copy of backends/kernels/slop_tables.h without its prefix (a test holds the two equal)."""

# Bits of a token's class mask.
NEWLINE, BLANK, CLAUSE, DASH, BULLET, HEADING, BOLD, FENCE = (1 << bit for bit in range(8))
THINK_OPEN, THINK_CLOSE, TOOL_OPEN, TOOL_CLOSE, LEXICAL, OPENER, EMOJI, END, VISIBLE = (1 << bit for bit in range(8, 17))
# The state: 12 bytes, three little-endian words.
WORDS = 3
WORD_FIRST, WORD_SECOND, WORD_VISIBLE = range(3)
REGION_SHIFT, FLAGS_SHIFT, DASHES_SHIFT, BULLET_RUN_SHIFT = 0, 8, 16, 24
HEADINGS_SHIFT, BOLDS_SHIFT = 0, 8
PROSE, FENCED, THINK, TOOL = range(4)
LINE_START, CLAUSE_START, BULLET_LINE, BOLD_OPEN = 1, 2, 4, 8
COUNT_MAX = 255
VISIBLE_MAX = 2**32 - 1
KNOBS = 4
KNOB_DASH, KNOB_LEXICAL, KNOB_STRUCTURE, KNOB_OPENER = range(4)
KNOB_MAX = 20
CAP = 30
