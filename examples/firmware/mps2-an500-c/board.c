/* Arm MPS2 with the FPGA image AN500, a Cortex-M7: start, and a console by semihosting, which a debug probe provides, too.
 * On another board, print and read_line use its UART. */
#include "board.h"

int main(void);

/* Set by board.ld. */
extern uint32_t stack_top[], data_start[], data_end[], data_in_flash[], bss_start[], bss_end[];

enum { OPEN = 0x01, WRITE = 0x05, READ = 0x06, SEEK = 0x0a, FLEN = 0x0c, GET_CMDLINE = 0x15, EXIT_EXTENDED = 0x20 };

static uintptr_t semihosting(uintptr_t operation, const uintptr_t *arguments) {
  register uintptr_t r0 __asm__("r0") = operation;
  register const uintptr_t *r1 __asm__("r1") = arguments;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}

/* Opens the console: mode 0 to read, 4 to write. */
static uintptr_t console(uintptr_t mode) {
  static const char name[] = ":tt";
  const uintptr_t arguments[] = {(uintptr_t)name, mode, sizeof name - 1};
  return semihosting(OPEN, arguments);
}

void print(const char *text, size_t len) {
  static uintptr_t out;
  if (out == 0) out = console(4) + 1;
  if (len == SIZE_MAX)
    for (len = 0; text[len]; len++) {}
  const uintptr_t arguments[] = {out - 1, (uintptr_t)text, len};
  if (len > 0) semihosting(WRITE, arguments);
}

int read_line(char *line, size_t size) {
  static uintptr_t in;
  size_t len = 0;
  char byte;
  if (in == 0) in = console(0) + 1;
  const uintptr_t arguments[] = {in - 1, (uintptr_t)&byte, 1};
  while (semihosting(READ, arguments) == 0) {
    if (byte == '\n') {
      line[len] = 0;
      return 1;
    }
    if (byte != '\r' && len + 1 < size) line[len++] = byte;
  }
  line[len] = 0;
  return len > 0;
}

/* A file of the host stands in for the card. */
static uintptr_t card;

int card_open(uint64_t *len) {
  static char path[256];
  uintptr_t line[] = {(uintptr_t)path, sizeof path};
  if (semihosting(GET_CMDLINE, line) != 0) return 0;
  const uintptr_t arguments[] = {(uintptr_t)path, 1 /* "rb" */, line[1]};
  card = semihosting(OPEN, arguments);
  const uintptr_t opened[] = {card};
  *len = card == UINTPTR_MAX ? 0 : semihosting(FLEN, opened);
  return *len > 0 && *len != UINTPTR_MAX;
}

int card_read(uint64_t offset, void *buffer, size_t len) {
  const uintptr_t to[] = {card, (uintptr_t)offset}, bytes[] = {card, (uintptr_t)buffer, len};
  return semihosting(SEEK, to) != 0 || semihosting(READ, bytes) != 0;
}

void quit(int code) {
  const uintptr_t arguments[] = {0x20026, (uintptr_t)code}; /* ADP_Stopped_ApplicationExit */
  for (;;) semihosting(EXIT_EXTENDED, arguments);
}

void reset(void) {
  /* Full access to the floating-point unit. */
  *(volatile uint32_t *)0xe000ed88 |= 0xfu << 20;
  __asm__ volatile("dsb\nisb" ::: "memory");
  for (uint32_t *to = data_start, *from = data_in_flash; to < data_end;) *to++ = *from++;
  for (uint32_t *to = bss_start; to < bss_end;) *to++ = 0;
  quit(main());
}

static void fault(void) {
  print("fault\n", SIZE_MAX);
  quit(102);
}

/* The stack, and the first exceptions: reset, NMI, hard fault, memory management, bus fault, usage fault. */
__attribute__((section(".vectors"), used)) static const void *const vectors[] = {
    stack_top, (void *)reset, (void *)fault, (void *)fault, (void *)fault, (void *)fault, (void *)fault};
