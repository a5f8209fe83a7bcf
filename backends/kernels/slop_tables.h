// Numbers of the slop policy; backends/decode/slop_tables.py holds the same for the host, without the prefix.
//
// What a token's own text shows: the class mask, a bit each.
#define SLOP_NEWLINE 0x1      // contains \n
#define SLOP_BLANK 0x2        // contains \n\n
#define SLOP_CLAUSE 0x4       // ends a clause: . ! ? ; :
#define SLOP_DASH 0x8         // em or en dash, or " --"
#define SLOP_BULLET 0x10      // is a bullet sign
#define SLOP_HEADING 0x20     // is one to six #
#define SLOP_BOLD 0x40        // contains **
#define SLOP_FENCE 0x80       // contains ``` or ~~~
#define SLOP_THINK_OPEN 0x100
#define SLOP_THINK_CLOSE 0x200
#define SLOP_TOOL_OPEN 0x400
#define SLOP_TOOL_CLOSE 0x800
#define SLOP_LEXICAL 0x1000   // a word of the lexicon, or the first piece of a phrase
#define SLOP_OPENER 0x2000    // the same of the openers
#define SLOP_EMOJI 0x4000
#define SLOP_END 0x8000       // ends the generation
#define SLOP_VISIBLE 0x10000  // any character that is not blank
// The state, 12 bytes as three little-endian words: region u8, flags u8, dashes u8, bullet_run u8; headings u8, bolds u8, reserved u16 = 0;
// visible u32. All counters saturate. Shifts are within the word.
#define SLOP_WORDS 3
#define SLOP_WORD_FIRST 0
#define SLOP_REGION_SHIFT 0
#define SLOP_FLAGS_SHIFT 8
#define SLOP_DASHES_SHIFT 16
#define SLOP_BULLET_RUN_SHIFT 24
#define SLOP_WORD_SECOND 1
#define SLOP_HEADINGS_SHIFT 0
#define SLOP_BOLDS_SHIFT 8
#define SLOP_WORD_VISIBLE 2
#define SLOP_PROSE 0          // regions
#define SLOP_FENCED 1
#define SLOP_THINK 2
#define SLOP_TOOL 3
#define SLOP_LINE_START 1     // flags
#define SLOP_CLAUSE_START 2
#define SLOP_BULLET_LINE 4
#define SLOP_BOLD_OPEN 8
#define SLOP_COUNT_MAX 255    // of the byte counters; visible saturates at 0xffffffff
// The knobs, floats in this order; 0..SLOP_KNOB_MAX each.
#define SLOP_KNOBS 4
#define SLOP_KNOB_DASH 0
#define SLOP_KNOB_LEXICAL 1
#define SLOP_KNOB_STRUCTURE 2
#define SLOP_KNOB_OPENER 3
#define SLOP_KNOB_MAX 20
#define SLOP_CAP 30           // most that an id's logit is lowered by, after the sum in bit order
