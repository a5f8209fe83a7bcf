// Layout of the device tables; backends/tables.py holds the same numbers for the host.
#define ROW_INTS 4            // rows[r] = slot, absolute position, token, active
#define ROW_SLOT 0
#define ROW_POSITION 1
#define ROW_TOKEN 2
#define ROW_ACTIVE 3
#define CONTROL_INTS 16
#define CONTROL_ROWS 0        // control[0] = rows in the table
#define CONTROL_FIRST 1       // the drafter's: position of row 0 of the residual it reads
#define CONTROL_ROOM 2        // drafts that the next window has room for
#define CONTROL_PRODUCT 4     // 64 bits: the product of the drafts' probabilities
#define BLOCK 64              // positions per KV block
#define SLOT_INTS 32          // slots[s]: what a sequence's picks and stops need
#define SLOT_TEMPERATURE 0    // float bits
#define SLOT_SEED_LOW 1
#define SLOT_SEED_HIGH 2
#define SLOT_BUDGET 3         // tokens still allowed
#define SLOT_CONTEXT 4        // context length in tokens
#define SLOT_IGNORE_END 5
#define SLOT_BIASES 6         // entries of the bias list
#define SLOT_TOP_K 7          // 0: off
#define SLOT_TOP_P 8          // in units of 2^-32; 0: off
#define SLOT_MIN_P 9          // float bits of the least weight (sampler.h); 0: off
#define SLOT_REPEAT 10        // float bits: repetition, presence and frequency penalty
#define SLOT_PRESENCE 11
#define SLOT_FREQUENCY 12
#define SLOT_LAST_N 13        // how many of the last tokens the penalties look at
#define SLOT_WINDOW 14        // rows of a window at most
#define SLOT_DRAFT_MIN_P 15   // float bits: least probability of a draft
#define SLOT_SLOP_KNOBS 16    // float bits of the four knobs of the slop policy, where it acts (slop.h)
#define SLOT_SLOP_STATE 20    // three words: its state behind the input of the next window's first row
#define CUT_INTS 4            // cuts[r]: where a row's kept ids end in order (float bits and id), its largest logit (float bits)
#define CUT_VALUE 0
#define CUT_ID 1
#define CUT_TOP 2
#define OUT_INTS 32           // out[s]: what a round gives back
#define OUT_COUNT 0
#define OUT_FLAGS 1
#define OUT_BAD_POSITION 2
#define OUT_DRAFTED 3         // drafts computed for the next window, and how many of them are in it
#define OUT_TOKENS 4
#define OUT_KEPT 12
#define OUT_DRAFTS 13         // tokens of the drafts computed (-1: not a number)
#define OUT_PROBABILITIES 20  // float bits
#define FLAG_END 1
#define FLAG_BUDGET 2
#define FLAG_CONTEXT 4
#define FLAG_BAD 8
#define DRAFT_PART 1024       // ids of the draft head that are summed together
#define SLOP_PART 1024        // ids of a row that the slop policy sums together
#define SLOP_PART_INTS 8      // of every SLOP_PART ids: largest logits, sums (slop.h)
