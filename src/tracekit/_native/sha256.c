/* SHA-256 with the SHA instructions of x86-64 processors. hashlib uses them, too, but creating its objects takes longer than hashing an
 * entry, and importing it loads OpenSSL. Without such instructions, or a compiler that knows them, hashlib is used. */

#include "native.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <cpuid.h>
#include <immintrin.h>

#define BLOCK 64

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

int
tracekit_has_ssse3(void)
{
    unsigned int a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSSE3) != 0;
}

int
tracekit_has_sha256(void)
{
    unsigned int a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSSE3) || !(c & bit_SSE4_1)) {
        return 0;
    }
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & (1u << 29)) != 0;
}

/* Process `count` blocks. */
__attribute__((target("sha,sse4.1,ssse3"))) static void
compress(uint32_t state[8], const unsigned char *blocks, size_t count)
{
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
    /* The instructions expect the words as ABEF and CDGH. */
    __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)&state[0]), 0xb1);
    __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)&state[4]), 0x1b);
    __m128i abef = _mm_alignr_epi8(abcd, efgh, 8), cdgh = _mm_blend_epi16(efgh, abcd, 0xf0);

    for (; count; count--, blocks += BLOCK) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i w[4];
        for (int i = 0; i < 4; i++) {
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(blocks + 16 * i)), big_endian);
        }
        for (int i = 0; i < 16; i++) { /* four rounds each */
            __m128i sum = _mm_add_epi32(w[i & 3], _mm_loadu_si128((const __m128i *)&K[4 * i]));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
            if (i < 12) { /* the message schedule of later rounds */
                __m128i last = w[(i + 3) & 3];
                __m128i next = _mm_add_epi32(
                    _mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]), _mm_alignr_epi8(last, w[(i + 2) & 3], 4)
                );
                w[i & 3] = _mm_sha256msg2_epu32(next, last);
            }
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)&state[0], _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((__m128i *)&state[4], _mm_alignr_epi8(dchg, feba, 8));
}

void
tracekit_sha256(const char *first, size_t first_size, const char *rest, size_t size, unsigned char digest[32])
{
    uint32_t state[8] = {
        0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
    };
    unsigned char end[2 * BLOCK] = {0};
    uint64_t bits = ((uint64_t)first_size + size) * 8;
    size_t left = first_size % BLOCK;
    compress(state, (const unsigned char *)first, first_size / BLOCK);
    memcpy(end, first + first_size - left, left);
    if (left) { /* a block with bytes of both texts */
        size_t both = size < BLOCK - left ? size : BLOCK - left;
        memcpy(end + left, rest, both);
        rest += both;
        size -= both;
        left += both;
        if (left == BLOCK) {
            compress(state, end, 1);
            left = 0;
        }
    }
    if (left == 0) {
        compress(state, (const unsigned char *)rest, size / BLOCK);
        left = size % BLOCK;
        memcpy(end, rest + size - left, left);
    }
    size_t ends = left + 9 > BLOCK ? 2 : 1; /* blocks for the remaining bytes, the 1 bit and the length */
    end[left] = 0x80;
    memset(end + left + 1, 0, sizeof(end) - left - 1);
    for (int i = 0; i < 8; i++) {
        end[ends * BLOCK - 1 - i] = (unsigned char)(bits >> (8 * i));
    }
    compress(state, end, ends);
    for (int i = 0; i < 32; i++) {
        digest[i] = (unsigned char)(state[i / 4] >> (24 - 8 * (i % 4)));
    }
}

#else

int
tracekit_has_ssse3(void)
{
    return 0;
}

int
tracekit_has_sha256(void)
{
    return 0;
}

void
tracekit_sha256(
    const char *Py_UNUSED(first), size_t Py_UNUSED(first_size), const char *Py_UNUSED(rest), size_t Py_UNUSED(size),
    unsigned char Py_UNUSED(digest)[32])
{
    Py_FatalError("there are no instructions for SHA-256");
}

#endif
