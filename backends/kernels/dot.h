// Integer dot products of 16 weight rows (4 unsigned bytes per 32-bit lane) with 4 activation codes that all lanes share.
// Every form is exact, so all give the same bits. DOT: 2 = AVX-512 VNNI by the LLVM intrinsic's name, 3 = portable 16-bit
// multiply-accumulate of 4-bit weights (15 * 127 * 16 < 32768); with one lane 4 = the device's instruction, else plain products.
// Activations of a mat-vec: int8 weights read codes, scales and sums; float weights read values.
typedef struct { GLOBAL uint *codes; GLOBAL float *scales, *sums, *values; } Activation;

#if LANES == 1
DEVICE int dot4(int sum, uint w, uint x) {
#if DOT == 4
  return DP4A(sum, w, x);
#else
  int y = (int)x;  // the codes' signs come with an arithmetic shift
  return sum + (int)(w & 255u) * (y << 24 >> 24) + (int)(w >> 8 & 255u) * (y << 16 >> 24) + (int)(w >> 16 & 255u) * (y << 8 >> 24) + (int)(w >> 24) * (y >> 24);
#endif
}
#define DOT4(sum, w, x) dot4(sum, w, x)
#define CODE_BYTES 1
#define X_WORDS 8
#else
typedef short s32 __attribute__((ext_vector_type(32)));
#if DOT == 2
typedef char c64 __attribute__((ext_vector_type(64)));
int16 vpdpbusd(int16, c64, c64) __asm__("llvm.x86.avx512.vpdpbusd.512");
#define DOT4(sum, w, x) vpdpbusd(sum, __builtin_astype(w, c64), __builtin_astype((uint16)(x), c64))
#define CODE_BYTES 1
#define X_WORDS 8             // 32-bit words of codes per block of 32
#else
#define MAC16(sum, w, c, x) { \
  sum += __builtin_astype((w) & 0x000f000fu, s32) * __builtin_astype((uint16)((x)[2 * (c)]), s32); \
  sum += __builtin_astype(((w) >> 8) & 0x000f000fu, s32) * __builtin_astype((uint16)((x)[2 * (c) + 1]), s32); }
DEVICE int16 fold16(s32 sum) { int16 v = __builtin_astype(sum, int16); return (v >> 16) + ((v << 16) >> 16); }
#define CODE_BYTES 2          // 16-bit codes, pairs in the order that MAC16 eats
#define X_WORDS 16
#endif
#endif
#define BYTES_AT_ONCE (DOT == 2 || LANES == 1)  // DOT4 takes whole bytes; else nibbles through MAC16
