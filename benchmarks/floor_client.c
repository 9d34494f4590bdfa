/* The floor: what streaming costs a client written in C, with nothing but epoll, recv and a clock.
 *
 * Closed loop over keep-alive connections; splits the events, keeps one user-space timestamp per token, and prints what it
 * measured and what that cost. No error handling worth the name: it exists to be compared with.
 *
 *   cc -O2 -o floor_client floor_client.c && ./floor_client PORT STREAMS REQUESTS TOKENS
 */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t ns_t;
typedef struct {
  int fd, count;
  ns_t start, *times;
} Stream;

static ns_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (ns_t)t.tv_sec * 1000000000ull + t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double at(const double *v, size_t n, double share) {
  double k = n ? (n - 1) * share : 0;
  size_t i = (size_t)k;
  return !n ? 0 : i + 1 < n ? v[i] + (k - i) * (v[i + 1] - v[i]) : v[i];
}

static int port, tokens, sent, wanted;

static int ask(Stream *s) {
  static char body[8192], request[9000];
  if (sent >= wanted) return 0;
  int n = sprintf(body, "{\"model\":\"schedule\",\"messages\":[{\"role\":\"user\",\"content\":\"%d", sent++);
  for (int i = 0; i < 256; i++) n += sprintf(body + n, " word%d", i % 97);
  n += sprintf(body + n, "\"}],\"max_tokens\":%d,\"stream\":true,\"stream_options\":{\"include_usage\":true}}", tokens);
  int m = sprintf(request, "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s", port, n, body);
  s->times = malloc(sizeof(ns_t) * (tokens + 8)), s->count = 0, s->start = now();
  return send(s->fd, request, m, MSG_NOSIGNAL) == m;
}

int main(int argc, char **argv) {
  if (argc < 5) return fprintf(stderr, "floor_client PORT STREAMS REQUESTS TOKENS\n"), 2;
  int streams = atoi(argv[2]), finished = 0, one = 1;
  port = atoi(argv[1]), wanted = atoi(argv[3]), tokens = atoi(argv[4]);
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files), files.rlim_cur = files.rlim_max, setrlimit(RLIMIT_NOFILE, &files);
  Stream *stream = calloc(streams, sizeof *stream);
  double *ttft = malloc(8 * wanted), *itl = malloc(8 * (size_t)wanted * (tokens + 8)), ttft_sum = 0, itl_sum = 0;
  size_t itls = 0, counted = 0;
  int poller = epoll_create1(0);
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  for (int i = 0; i < streams; i++) {
    stream[i].fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(stream[i].fd, (void *)&to, sizeof to)) return perror("floor_client"), 3;
    setsockopt(stream[i].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = &stream[i]};
    epoll_ctl(poller, EPOLL_CTL_ADD, stream[i].fd, &e);
  }
  struct rusage r0, r1;
  getrusage(RUSAGE_SELF, &r0);
  ns_t begin = now();
  for (int i = 0; i < streams; i++) ask(&stream[i]);
  static char buffer[65536];
  struct epoll_event ready[512];
  while (finished < wanted) {
    int n = epoll_wait(poller, ready, 512, -1);
    for (int i = 0; i < n; i++) {
      Stream *s = ready[i].data.ptr;
      ssize_t got = recv(s->fd, buffer, sizeof buffer, MSG_DONTWAIT);
      ns_t t = now();
      if (got <= 0) return fprintf(stderr, "floor_client: the server hung up\n"), 3;
      for (char *p = buffer, *end = buffer + got; (p = memmem(p, end - p, "\"delta\":{\"content\":\" ", 21)); p += 21)
        if (s->count < tokens) s->times[s->count++] = t;
      if (got < 5 || memcmp(buffer + got - 5, "0\r\n\r\n", 5)) continue;
      ttft_sum += ttft[finished++] = (s->times[0] - s->start) / 1e6, counted += s->count;
      for (int k = 1; k < s->count; k++) itl_sum += itl[itls++] = (s->times[k] - s->times[k - 1]) / 1e6;
      free(s->times), ask(s);
    }
  }
  double wall = (now() - begin) / 1e9;
  getrusage(RUSAGE_SELF, &r1);
  double cpu = r1.ru_utime.tv_sec - r0.ru_utime.tv_sec + r1.ru_stime.tv_sec - r0.ru_stime.tv_sec +
               (r1.ru_utime.tv_usec - r0.ru_utime.tv_usec + r1.ru_stime.tv_usec - r0.ru_stime.tv_usec) * 1e-6;
  qsort(ttft, finished, 8, by_value), qsort(itl, itls, 8, by_value);
  printf("{\"tokens\":%zu,\"wall_s\":%.4f,\"cpu_s\":%.4f,\"mean_ttft_ms\":%.4f,\"median_ttft_ms\":%.4f,\"p99_ttft_ms\":%.4f,"
         "\"mean_itl_ms\":%.4f,\"p99_itl_ms\":%.4f}\n",
         counted, wall, cpu, ttft_sum / finished, at(ttft, finished, .5), at(ttft, finished, .99), itls ? itl_sum / itls : 0,
         at(itl, itls, .99));
  return 0;
}
