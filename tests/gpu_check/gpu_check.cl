// Random weights and a copy, for any device in GPU shape: what the check needs and the engine does not.
DEVICE uint scrambled(uint x) {  // a bijection whose output looks random (lowbias32, Chris Wellons)
  x ^= x >> 16; x *= 0x7feb352du; x ^= x >> 15; x *= 0x846ca68bu; x ^= x >> 16;
  return x;
}
// A matrix of row blocks: `head` 32-bit words of 16-bit fields, then codes. Of every 16 words of the head, the first `scales` hold two scales
// each, the others two minima.
KERNEL void fill(GLOBAL uint *arena, int line, int row_blocks, int words, int head, int scales, int scale, int minimum, int seed) {
  for (int b = group_id(); b < row_blocks; b += num_groups()) {
    GLOBAL uint *block = arena + (size_t)line * 16 + (size_t)b * words;
    uint key = scrambled((uint)seed * 0x9e3779b9u + (uint)b);
    for (int i = local_id(); i < words; i += local_size()) {
      uint field = (uint)(i % 16 < scales ? scale : minimum);
      block[i] = i < head ? field << 16 | field : scrambled(key + (uint)i);
    }
  }
}
KERNEL void copy(GLOBAL const uint *from, GLOBAL uint *to, int count) {
  int step = num_groups() * local_size();
  for (int i = group_id() * local_size() + local_id(); i < count; i += 4 * step) {  // four loads on their way at a time
    uint a = from[i], b = 0, c = 0, d = 0;
    if (i + step < count) b = from[i + step];
    if (i + 2 * step < count) c = from[i + 2 * step];
    if (i + 3 * step < count) d = from[i + 3 * step];
    to[i] = a;
    if (i + step < count) to[i + step] = b;
    if (i + 2 * step < count) to[i + 2 * step] = c;
    if (i + 3 * step < count) to[i + 3 * step] = d;
  }
}
