// Layout of the device tables; backends/tables.py holds the same numbers for the host.
#define ROW_INTS 4            // rows[r] = slot, absolute position, token, active
#define ROW_SLOT 0
#define ROW_POSITION 1
#define ROW_TOKEN 2
#define ROW_ACTIVE 3
#define CONTROL_ROWS 0        // control[0] = rows in the table
#define BLOCK 64              // positions per KV block
#define SLOT_INTS 16          // slots[s]: what a sequence's picks and stops need
#define SLOT_TEMPERATURE 0    // float bits
#define SLOT_SEED_LOW 1
#define SLOT_SEED_HIGH 2
#define SLOT_BUDGET 3         // tokens still allowed
#define SLOT_CONTEXT 4        // context length in tokens
#define SLOT_IGNORE_END 5
#define SLOT_BIASES 6         // entries of the bias list
#define OUT_INTS 16           // out[s] = count, flags, bad position, 0, tokens[12]
#define OUT_COUNT 0
#define OUT_FLAGS 1
#define OUT_BAD_POSITION 2
#define OUT_TOKENS 4
#define FLAG_END 1
#define FLAG_BUDGET 2
#define FLAG_CONTEXT 4
#define FLAG_BAD 8
