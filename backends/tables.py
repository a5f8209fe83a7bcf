"""Layout of the device tables, the host's copy of backends/kernels/tables.h (a test holds the two equal).

Row table: int32 [rows][4] = slot, absolute position, token, active. Slot table: int32 [slots][16]: what a sequence's picks and
stops need. Out table: int32 [slots][16]: what a round gives back.
"""

ROW_INTS = 4
ROW_SLOT, ROW_POSITION, ROW_TOKEN, ROW_ACTIVE = range(4)
CONTROL_ROWS = 0
BLOCK = 64
SLOT_INTS = 16
SLOT_TEMPERATURE, SLOT_SEED_LOW, SLOT_SEED_HIGH, SLOT_BUDGET, SLOT_CONTEXT, SLOT_IGNORE_END, SLOT_BIASES = range(7)
OUT_INTS = 16
OUT_COUNT, OUT_FLAGS, OUT_BAD_POSITION = range(3)
OUT_TOKENS = 4
FLAG_END, FLAG_BUDGET, FLAG_CONTEXT, FLAG_BAD = 1, 2, 4, 8
PARTIAL_INTS = 4
STORE, ADD, SILU, GATED = range(4)  # what a mat-vec does with its result (kernels/matvec.cl)
MAX_WINDOW = 8
