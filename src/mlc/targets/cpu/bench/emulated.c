/* Runs a candidate of another processor under an emulator: its operands lie in a file that whoever measures has mapped as
 * well, and orders come by standard input. An order is how often to call it; the answer its last code, and nanoseconds.
 *
 *     program FILE BYTES THREADS INPUTS OUTPUTS OFFSET...
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef struct mlc_pool mlc_pool;
int32_t mlc_run(void *const *inputs, void *const *outputs, void *params, void *workspace, mlc_pool *pool);
mlc_pool *mlc_pool_create(int32_t threads);

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int main(int argc, char **argv) {
  if (argc < 7) return 2;
  size_t bytes = strtoull(argv[2], NULL, 10);
  int inputs = atoi(argv[4]), outputs = atoi(argv[5]), file = open(argv[1], O_RDWR);
  if (file < 0 || argc != 7 + inputs + outputs) return 3;
  char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  mlc_pool *pool = mlc_pool_create(atoi(argv[3]));
  void **places = malloc((inputs + outputs + 1) * sizeof *places);
  if (base == MAP_FAILED || pool == NULL || places == NULL) return 4;
  for (int i = 0; i <= inputs + outputs; i++) places[i] = base + strtoull(argv[6 + i], NULL, 10);
  void *scratch = places[inputs + outputs];
  for (int64_t calls; read(0, &calls, sizeof calls) == sizeof calls;) {
    int64_t answer[2] = {0, now()};
    for (int64_t i = 0; i < calls; i++) answer[0] = mlc_run(places, places + inputs, scratch, scratch, pool);
    answer[1] = now() - answer[1];
    if (write(1, answer, sizeof answer) != sizeof answer) return 5;
  }
  return 0;
}
