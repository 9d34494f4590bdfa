/* An OpenAI-compatible server that streams on an exact schedule and knows the truth.
 *
 * Every request gets its first token `ttft_us` after it arrived and one more each `itl_us`; both 0: as fast as the
 * socket takes them. The text of each token is the CLOCK_MONOTONIC nanosecond at which it was handed to the kernel, and the
 * server remembers all of them, so that what a client reports can be held against what happened. A request's arrival is the
 * kernel's receive timestamp of its first byte: neither the server's own lateness nor the client's clock is in it.
 *
 *   cc -O2 -o schedule_server schedule_server.c && ./schedule_server 8900
 *
 *   GET  /control?ttft_us=200000&itl_us=20000&role=1&per_chunk=1&reasoning=0&tool=0&pack=1&usage=1   set and forget the past
 *   GET  /truth      requests, tokens, mean_ttft_ms, p99_itl_ms, … as they were
 *   POST /v1/chat/completions, /v1/completions (max_tokens says how many), /tokenize; GET /v1/models
 *
 * role: 0 none, 1 with the first token, 2 at once. per_chunk: tokens in one chunk. pack: chunks in one write when both times
 * are 0. reasoning: percent of the chunks that are reasoning. tool: 1 sends tool-call deltas. One thread; binds to 127.0.0.1.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t ns_t;

static struct {
  ns_t ttft, itl;
  int role, per_chunk, reasoning, tool, pack, usage;
} config = {200000000, 20000000, 1, 1, 0, 0, 1, 1};

typedef struct {
  ns_t arrived;
  int count;
  ns_t sent[];
} Log;

static Log **logs;
static size_t log_count, log_room;
static uint64_t late_chunks, blocked_writes, serials;

typedef struct Conn {
  int fd, chat, usage, streaming, chunks, next, tokens, place; /* place: index in the heap or the run list, -1 when in neither */
  char *in, *out;
  size_t in_len, in_room, out_len, out_off, out_room;
  ns_t arrived, start, due;
  uint64_t serial;
  Log *log;
} Conn;

static int poller;

static ns_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (ns_t)t.tv_sec * 1000000000ull + t.tv_nsec;
}

static ns_t wall_offset(void) { /* CLOCK_REALTIME minus CLOCK_MONOTONIC; kernel stamps are in the former */
  struct timespec t;
  ns_t before = now();
  clock_gettime(CLOCK_REALTIME, &t);
  return (ns_t)t.tv_sec * 1000000000ull + t.tv_nsec - (before + now()) / 2;
}

/* ---- who is due next: a binary heap by `due`, or a plain list when there is no schedule ---- */
static Conn **queue;
static int queued, queue_room;

static int sooner(int a, int b) { return queue[a]->due < queue[b]->due; }

static void exchange(int a, int b) {
  Conn *t = queue[a];
  queue[a] = queue[b], queue[b] = t;
  queue[a]->place = a, queue[b]->place = b;
}

static void sift_up(int i) {
  for (; i > 0 && sooner(i, (i - 1) / 2); i = (i - 1) / 2) exchange(i, (i - 1) / 2);
}

static void sift_down(int i) {
  for (;;) {
    int least = i, left = 2 * i + 1, right = left + 1;
    if (left < queued && sooner(left, least)) least = left;
    if (right < queued && sooner(right, least)) least = right;
    if (least == i) return;
    exchange(i, least), i = least;
  }
}

static void enqueue(Conn *c) {
  if (queued == queue_room) queue = realloc(queue, (queue_room = queue_room ? queue_room * 2 : 1024) * sizeof *queue);
  c->place = queued, queue[queued++] = c;
  sift_up(c->place);
}

static void dequeue(Conn *c) {
  int i = c->place;
  if (i < 0) return;
  if (i != --queued) {
    queue[i] = queue[queued], queue[i]->place = i;
    sift_up(i), sift_down(queue[i]->place);
  }
  c->place = -1;
}

/* ---- chunks, made once and stamped when sent ---- */
#define MODEL "schedule"
#define NAME "0123456789abcdef0123456789abcdef" /* stands for the request's own, which is stamped over it */
#define FRAME "data: {\"id\":\"%s-" NAME "\",\"object\":\"%s\",\"created\":1763100000,\"model\":\"" MODEL "\",\"choices\":["
enum { CONTENT, REASONING, TOOL };
static struct {
  char text[16384];
  int length, stamp, name;
} chunk[2][3];

static int framed(char *to, const char *event) { return sprintf(to, "%zx\r\n%s\r\n", strlen(event), event); }

static int frame(char *to, int chat) {
  return sprintf(to, FRAME, chat ? "chatcmpl" : "cmpl", chat ? "chat.completion.chunk" : "text_completion");
}

static void stamp_name(char *at, uint64_t serial) { /* 16 of its 32 digits; no two requests have the same */
  for (int i = 15; i >= 0; i--, serial >>= 4) at[i] = "0123456789abcdef"[serial & 15];
}

static int named(const Conn *c, char *to) { /* a frame with the name of the request */
  int n = frame(to, c->chat);
  stamp_name(strstr(to, NAME), c->serial);
  return n;
}

static void make_chunks(void) {
  static const char *const delta[] = {"{\"content\":\"%s\"}", "{\"reasoning_content\":\"%s\"}",
                                      "{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"%s\"}}]}"};
  for (int chat = 0; chat < 2; chat++)
    for (int kind = 0; kind < 3; kind++) {
      char words[4096] = "", event[12000];
      for (int i = 0; i < config.per_chunk; i++) strcat(words, i ? " the" : " 000000000000000000");
      int n = frame(event, chat);
      n += sprintf(event + n, chat ? "{\"index\":0,\"delta\":" : "{\"index\":0,\"text\":");
      n += sprintf(event + n, chat ? delta[kind] : "\"%s\"", words);
      sprintf(event + n, ",\"logprobs\":null,\"finish_reason\":null}]}\n\n");
      chunk[chat][kind].length = framed(chunk[chat][kind].text, event);
      chunk[chat][kind].stamp = (int)(strstr(chunk[chat][kind].text, " 000000") - chunk[chat][kind].text) + 1;
      chunk[chat][kind].name = (int)(strstr(chunk[chat][kind].text, NAME) - chunk[chat][kind].text);
    }
}

static int put_token(Conn *c, char *to, ns_t t) {
  int kind = !c->chat ? CONTENT : config.tool ? TOOL : c->next * 100 < c->chunks * config.reasoning ? REASONING : CONTENT;
  memcpy(to, chunk[c->chat][kind].text, chunk[c->chat][kind].length);
  stamp_name(to + chunk[c->chat][kind].name, c->serial);
  for (char *p = to + chunk[c->chat][kind].stamp + 17, *first = p - 17; p >= first; p--, t /= 10) *p = '0' + t % 10;
  return chunk[c->chat][kind].length;
}

static const char HEAD[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

static int put_head(Conn *c, char *to) {
  char event[1000];
  int n = sizeof HEAD - 1;
  memcpy(to, HEAD, n);
  if (!c->chat || !config.role) return n;
  sprintf(event + named(c, event), "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n");
  return n + framed(to + n, event);
}

static int put_tail(Conn *c, char *to) {
  char event[1000];
  sprintf(event + named(c, event), "{\"index\":0,%s,\"logprobs\":null,\"finish_reason\":\"length\"}]}\n\n",
          c->chat ? "\"delta\":{}" : "\"text\":\"\"");
  int n = framed(to, event);
  if (c->usage && config.usage) {
    sprintf(event + named(c, event),
            "],\"usage\":{\"prompt_tokens\":256,\"completion_tokens\":%d,\"total_tokens\":%d}}\n\n", c->tokens, c->tokens + 256);
    n += framed(to + n, event);
  }
  n += framed(to + n, "data: [DONE]\n\n");
  return n + sprintf(to + n, "0\r\n\r\n");
}

/* ---- the wire ---- */
static void watch(Conn *c, int writable) {
  struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | (writable ? EPOLLOUT : 0), .data.ptr = c};
  epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
}

static void hang_up(Conn *c) {
  dequeue(c), close(c->fd), free(c->in), free(c->out), free(c);
}

static int transmit(Conn *c, const char *data, size_t n) {
  ssize_t sent = 0;
  if (c->out_len == c->out_off) {
    sent = send(c->fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN) return -1;
    if (sent < 0) sent = 0;
    if ((size_t)sent == n) return 0;
    c->out_len = c->out_off = 0, blocked_writes++;
    watch(c, 1);
  }
  if (c->out_len + n - sent > c->out_room) c->out = realloc(c->out, c->out_room = (c->out_len + n) * 2);
  memcpy(c->out + c->out_len, data + sent, n - sent), c->out_len += n - sent;
  return 0;
}

static char scratch[1 << 20];

/* Sends the next `many` chunks; -1 the peer is gone, 1 that was the last, 0 more to come. */
static int advance(Conn *c, int many) {
  int n = c->next == 0 && config.role != 2 ? put_head(c, scratch) : 0;
  if (n && c->chat && config.role == 1 && many == 1) { /* its own write, as uvicorn does */
    if (transmit(c, scratch, n) < 0) return -1;
    n = 0;
  }
  for (int i = 0; i < many && c->next < c->chunks; i++) {
    ns_t t = now();
    if (c->due && t > c->due + 1000000) late_chunks++;
    n += put_token(c, scratch + n, t), c->log->sent[c->next++] = t;
  }
  c->log->count = c->next;
  int last = c->next >= c->chunks;
  if (last && many > 1) n += put_tail(c, scratch + n);
  if (transmit(c, scratch, n) < 0) return -1;
  if (last && many == 1 && transmit(c, scratch, put_tail(c, scratch)) < 0) return -1;
  if (last) c->streaming = 0;
  return last;
}

static int answer(Conn *c, const char *body) {
  int n = sprintf(scratch, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s", strlen(body), body);
  return transmit(c, scratch, n);
}

/* ---- the truth ---- */
static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double at(const double *v, size_t n, double share) { /* numpy's linear percentile */
  if (!n) return 0;
  double k = (n - 1) * share;
  size_t i = (size_t)k;
  return i + 1 < n ? v[i] + (k - i) * (v[i + 1] - v[i]) : v[i];
}

static int truth(Conn *c) {
  size_t tokens = 0, n = 0, m = 0;
  double ttft_sum = 0, itl_sum = 0;
  for (size_t i = 0; i < log_count; i++) tokens += logs[i]->count;
  double *itl = malloc(8 * (tokens + 1)), *ttft = malloc(8 * (log_count + 1));
  for (size_t i = 0; i < log_count; i++) {
    Log *l = logs[i];
    if (l->count) ttft_sum += ttft[m++] = (l->sent[0] - l->arrived) / 1e6;
    for (int k = 1; k < l->count; k++) itl_sum += itl[n++] = (l->sent[k] - l->sent[k - 1]) / 1e6;
  }
  qsort(itl, n, 8, by_value), qsort(ttft, m, 8, by_value);
  struct rusage r;
  getrusage(RUSAGE_SELF, &r);
  char body[1000];
  sprintf(body,
          "{\"requests\":%zu,\"chunks\":%zu,\"mean_ttft_ms\":%.4f,\"median_ttft_ms\":%.4f,\"p99_ttft_ms\":%.4f,\"mean_itl_ms\":%.4f,"
          "\"median_itl_ms\":%.4f,\"p99_itl_ms\":%.4f,\"late_chunks\":%lu,\"blocked_writes\":%lu,\"cpu_s\":%.4f}",
          log_count, tokens, m ? ttft_sum / m : 0, at(ttft, m, .5), at(ttft, m, .99), n ? itl_sum / n : 0, at(itl, n, .5),
          at(itl, n, .99), late_chunks, blocked_writes,
          r.ru_utime.tv_sec + r.ru_stime.tv_sec + (r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1e-6);
  free(itl), free(ttft);
  return answer(c, body);
}

static void forget(void) {
  /* A log still being written belongs to a stream in flight: control is called between runs, when there is none. */
  for (size_t i = 0; i < log_count; i++) free(logs[i]);
  log_count = late_chunks = blocked_writes = 0;
}

/* ---- requests ---- */
static int number_after(const char *text, size_t n, const char *key, int otherwise) {
  const char *p = memmem(text, n, key, strlen(key)), *end = text + n;
  if (!p) return otherwise;
  for (p += strlen(key); p < end && (*p == ' ' || *p == ':' || *p == '='); p++) {}
  return p < end && isdigit((unsigned char)*p) ? atoi(p) : otherwise;
}

static int control(Conn *c, const char *query, size_t n) {
  config.ttft = number_after(query, n, "ttft_us", (int)(config.ttft / 1000)) * 1000ull;
  config.itl = number_after(query, n, "itl_us", (int)(config.itl / 1000)) * 1000ull;
  config.role = number_after(query, n, "role", config.role);
  config.per_chunk = number_after(query, n, "per_chunk", config.per_chunk);
  config.reasoning = number_after(query, n, "reasoning", config.reasoning);
  config.tool = number_after(query, n, "tool", config.tool);
  config.pack = number_after(query, n, "pack", config.pack);
  config.usage = number_after(query, n, "usage", config.usage);
  if (config.per_chunk < 1 || config.per_chunk > 900) config.per_chunk = 1;
  if (config.pack < 1 || config.pack > 100) config.pack = 1;
  make_chunks(), forget();
  return answer(c, "{\"ok\":true}");
}

static int stream(Conn *c, const char *path, const char *body, size_t n) {
  c->chat = strstr(path, "chat") != NULL, c->usage = memmem(body, n, "include_usage", 13) != NULL;
  c->tokens = number_after(body, n, "\"max_tokens\"", -1);
  if (c->tokens < 0) c->tokens = number_after(body, n, "\"max_completion_tokens\"", 100);
  if (c->tokens < 1) c->tokens = 1;
  c->chunks = (c->tokens + config.per_chunk - 1) / config.per_chunk, c->next = 0;
  c->log = malloc(sizeof(Log) + sizeof(ns_t) * c->chunks), c->log->arrived = c->arrived, c->log->count = 0;
  if (log_count == log_room) logs = realloc(logs, (log_room = log_room ? log_room * 2 : 4096) * sizeof *logs);
  logs[log_count++] = c->log, c->streaming = 1, c->start = now(), c->serial = ++serials;
  if (config.role == 2 && transmit(c, scratch, put_head(c, scratch)) < 0) return -1;
  c->due = config.ttft || config.itl ? c->arrived + config.ttft : 0;
  enqueue(c);
  return 0;
}

static int serve(Conn *c, char *path, const char *body, size_t n) {
  if (!strncmp(path, "/control", 8)) return control(c, path, strlen(path));
  if (!strncmp(path, "/truth", 6)) return truth(c);
  if (!strncmp(path, "/v1/models", 10)) return answer(c, "{\"object\":\"list\",\"data\":[{\"id\":\"" MODEL "\",\"object\":\"model\"}]}");
  if (strstr(path, "completions") && memmem(body, n, "\"stream\"", 8)) return stream(c, path, body, n);
  return answer(c, "{}");
}

static int requests(Conn *c) { /* serves every whole request in the buffer; -1 hangs up */
  while (!c->streaming && c->in_len) {
    char path[1024] = "", *end = memmem(c->in, c->in_len, "\r\n\r\n", 4), *space = memchr(c->in, ' ', c->in_len);
    if (!end) return 0;
    size_t head = end + 4 - c->in, length = 0;
    for (char *p = c->in; p < end; p++)
      if (*p == '\n' && !strncasecmp(p + 1, "content-length:", 15)) length = strtoull(p + 16, NULL, 10);
    if (c->in_len < head + length) return 0;
    if (!space || sscanf(space + 1, "%1023s", path) != 1) return -1;
    if (serve(c, path, c->in + head, length) < 0) return -1;
    c->in_len -= head + length;
    memmove(c->in, c->in + head + length, c->in_len);
  }
  return 0;
}

static int receive(Conn *c, ns_t offset) {
  if (c->in_room - c->in_len < 4096) c->in = realloc(c->in, c->in_room = c->in_room * 2 + 16384);
  char side[128];
  struct iovec iov = {c->in + c->in_len, c->in_room - c->in_len - 1};
  struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = side, .msg_controllen = sizeof side};
  ssize_t got = recvmsg(c->fd, &m, MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno != EAGAIN)) return -1;
  if (got < 0) return 0;
  if (c->in_len == 0) {
    c->arrived = now();
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h))
      if (h->cmsg_type == SCM_TIMESTAMPNS) {
        struct timespec t;
        memcpy(&t, CMSG_DATA(h), sizeof t);
        c->arrived = (ns_t)t.tv_sec * 1000000000ull + t.tv_nsec - offset;
      }
  }
  c->in_len += got, c->in[c->in_len] = 0;
  return requests(c);
}

static void welcome(int listener) {
  int fd, one = 1;
  while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
    Conn *c = calloc(1, sizeof *c);
    c->fd = fd, c->place = -1;
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
  }
}

static int flush(Conn *c) {
  ssize_t sent = send(c->fd, c->out + c->out_off, c->out_len - c->out_off, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) return errno == EAGAIN ? 0 : -1;
  if ((c->out_off += sent) == c->out_len) c->out_off = c->out_len = 0, watch(c, 0);
  return 0;
}

static void step(Conn *c, int many) {
  int state = advance(c, many);
  if (state < 0) return hang_up(c);
  if (state == 1) {
    dequeue(c);
    if (requests(c) < 0) hang_up(c);
  } else if (c->due) {
    c->due = c->arrived + config.ttft + (ns_t)c->next * config.itl, sift_down(c->place);
  }
}

static void send_due(void) {
  ns_t t = now();
  if (queued && !queue[0]->due) {
    for (int i = queued - 1; i >= 0; i--) /* backwards: step may take one out, moving the last into its place */
      if (i < queued && queue[i]->out_len == queue[i]->out_off) step(queue[i], config.pack);
    return;
  }
  for (int most = 256; queued && queue[0]->due <= t && most; most--) step(queue[0], 1);
}

int main(int argc, char **argv) {
  int port = argc > 1 ? atoi(argv[1]) : 8900, one = 1;
  signal(SIGPIPE, SIG_IGN), prctl(PR_SET_TIMERSLACK, 1000), prctl(PR_SET_PDEATHSIG, SIGTERM);
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files), files.rlim_cur = files.rlim_max, setrlimit(RLIMIT_NOFILE, &files);
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (bind(listener, (void *)&address, sizeof address) || listen(listener, 4096)) return perror("schedule_server"), 1;
  poller = epoll_create1(0);
  struct epoll_event e = {.events = EPOLLIN}, ready[512];
  epoll_ctl(poller, EPOLL_CTL_ADD, listener, &e);
  make_chunks();
  for (;;) {
    struct timespec wait = {0, 0}, *limit = queued ? &wait : NULL;
    ns_t t = now();
    if (queued && queue[0]->due > t) wait = (struct timespec){(queue[0]->due - t) / 1000000000ull, (queue[0]->due - t) % 1000000000ull};
    int n = epoll_pwait2(poller, ready, 512, limit, NULL);
    ns_t offset = wall_offset();
    for (int i = 0; i < n; i++) {
      Conn *c = ready[i].data.ptr;
      if (!c) welcome(listener);
      else if ((ready[i].events & EPOLLOUT && flush(c) < 0) || (ready[i].events & ~EPOLLOUT && receive(c, offset) < 0)) hang_up(c);
    }
    send_due();
  }
}
