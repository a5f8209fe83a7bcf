"""Layout of the device tables, the host's copy of backends/kernels/tables.h (a test holds the two equal).

Row table: int32 [rows][4] = slot, absolute position, token, active. Slot table: int32 [slots][32]: what a sequence's picks and
stops need. Out table: int32 [slots][32]: what a round gives back.
"""

ROW_INTS = 4
ROW_SLOT, ROW_POSITION, ROW_TOKEN, ROW_ACTIVE = range(4)
CONTROL_INTS = 16
CONTROL_ROWS, CONTROL_FIRST, CONTROL_ROOM = range(3)
CONTROL_PRODUCT = 4
BLOCK = 64
SLOT_INTS = 32
SLOT_TEMPERATURE, SLOT_SEED_LOW, SLOT_SEED_HIGH, SLOT_BUDGET, SLOT_CONTEXT, SLOT_IGNORE_END, SLOT_BIASES = range(7)
SLOT_TOP_K, SLOT_TOP_P, SLOT_MIN_P, SLOT_REPEAT, SLOT_PRESENCE, SLOT_FREQUENCY, SLOT_LAST_N = range(7, 14)
SLOT_WINDOW, SLOT_DRAFT_MIN_P = 14, 15
SLOT_SLOP_KNOBS, SLOT_SLOP_STATE = 16, 20
CUT_INTS = 4
CUT_VALUE, CUT_ID, CUT_TOP = range(3)
OUT_INTS = 32
OUT_COUNT, OUT_FLAGS, OUT_BAD_POSITION, OUT_DRAFTED, OUT_TOKENS = range(5)
OUT_KEPT, OUT_DRAFTS, OUT_PROBABILITIES = 12, 13, 20
FLAG_END, FLAG_BUDGET, FLAG_CONTEXT, FLAG_BAD = 1, 2, 4, 8
PARTIAL_INTS = 4
STORE, ADD, SILU, GATED = range(4)  # what a mat-vec does with its result (kernels/matvec.cl)
DRAFT_PART = SLOP_PART = 1024
SLOP_PART_INTS = 8
MAX_WINDOW = 8
