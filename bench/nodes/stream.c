// Bandwidth of memory, by a program that shares nothing with homenode: each thread sums, sets and
// combines arrays of its own (McCalpin's STREAM). The mean of the passes after the first, not the
// best of them: homenode tells what a step of its time took on the whole.
//
//   stream THREADS MIB PASSES      -> {"reads":bytes/s,"writes":bytes/s,"reads_2_writes_1":bytes/s}
//
// Stores go past the cache, so that combining moves three bytes for each byte of an array.
#define _GNU_SOURCE
#include <emmintrin.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static size_t words;
static int threads, passes;
static pthread_barrier_t barrier;
static double seconds[3];
static volatile double sink;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double *array(void) {
    double *a = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (a == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    madvise(a, words * 8, MADV_HUGEPAGE);
    for (size_t i = 0; i < words; i++)
        a[i] = 1.0;
    return a;
}

static void *work(void *id) {
    double *a = array(), *b = array(), *c = array();
    for (int pass = 0; pass < passes * 3; pass++) {
        pthread_barrier_wait(&barrier);
        double begin = now();
        if (pass % 3 == 0) {
            double s[8] = {0};
            for (size_t i = 0; i + 8 <= words; i += 8)
                for (int k = 0; k < 8; k++)
                    s[k] += b[i + k];
            for (int k = 0; k < 8; k++)
                sink += s[k];
        } else if (pass % 3 == 1) {
            __m128d value = _mm_set1_pd(pass);
            for (size_t i = 0; i + 2 <= words; i += 2)
                _mm_stream_pd(a + i, value);
            _mm_sfence();
        } else {
            for (size_t i = 0; i + 2 <= words; i += 2)
                _mm_stream_pd(a + i, _mm_add_pd(_mm_load_pd(b + i), _mm_load_pd(c + i)));
            _mm_sfence();
        }
        pthread_barrier_wait(&barrier);
        if (id == NULL && pass >= 3)
            seconds[pass % 3] += now() - begin;
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 4 || atoi(argv[3]) < 2)
        return 2;
    threads = atoi(argv[1]), words = (size_t)atol(argv[2]) << 17, passes = atoi(argv[3]);
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    pthread_t all[1024];
    for (intptr_t i = 1; i < threads && i < 1024; i++)
        pthread_create(&all[i], NULL, work, (void *)i);
    work(NULL);
    for (int i = 1; i < threads && i < 1024; i++)
        pthread_join(all[i], NULL);
    double bytes = 8.0 * (double)words * threads * (passes - 1);
    printf("{\"reads\":%.0f,\"writes\":%.0f,\"reads_2_writes_1\":%.0f}\n", bytes / seconds[0], bytes / seconds[1],
           3 * bytes / seconds[2]);
    return 0;
}
