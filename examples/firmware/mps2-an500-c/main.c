/* A chat in C: type a line, read the answer. The model stays in flash or, with -DSD_CARD, on a card; all memory is an array of
 * this program, and nothing is allocated after the set-up. */
#include "board.h"
#include <shohin.h>
#include <stdint.h>

/* Enough for a context of 256 tokens; shohin_memory_peak tells what was used. */
static uint64_t memory[(704 << 10) / 8];

static void print_number(const char *name, size_t number) {
  char digits[24], *end = digits + sizeof digits, *at = end;
  do *--at = (char)('0' + number % 10);
  while (number /= 10);
  print(name, SHOHIN_CSTR);
  print(at, (size_t)(end - at));
  print("\n", 1);
}

static int failed(const shohin_error *error) {
  print("error: ", SHOHIN_CSTR);
  print(error->message, SHOHIN_CSTR);
  print("\n", 1);
  return 1;
}

/* A bug in the library, or too little memory for the set-up. */
void shohin_panicked(const char *message, size_t len) {
  print(message, len);
  print("\n", 1);
  quit(101);
}

#ifdef SD_CARD
static int32_t start(void *card, uint64_t offset, void *buffer, size_t len) {
  (void)card;
  return card_read(offset, buffer, len);
}

/* Weights pass through 32 KiB; a driver with DMA also sets `wait`. */
static shohin_code load_model(const shohin_load_options *options, shohin_model **model, shohin_error *error) {
  shohin_storage storage = {.size = sizeof storage, .start = start};
  if (!card_open(&storage.len)) {
    print("there is no model on the card\n", SHOHIN_CSTR);
    quit(1);
  }
  return shohin_model_load_storage(&storage, 32 << 10, options, model, error);
}
#else
static shohin_code load_model(const shohin_load_options *options, shohin_model **model, shohin_error *error) {
  return shohin_model_load_in_place(model_start, (size_t)(model_end - model_start), options, model, error);
}
#endif

int main(void) {
  shohin_error error;
  shohin_model *model;
  shohin_chat *chat;
  shohin_load_options load;
  shohin_chat_options options;
  shohin_piece piece = {.size = sizeof piece};
  shohin_code code;
  char line[256];

  shohin_load_options_default(&load, sizeof load, NULL);
  load.context = 256;
  shohin_chat_options_default(&options, sizeof options, NULL);
  options.temperature = 0;
  options.max_tokens = 64;
  if (shohin_use_memory(memory, sizeof memory, &error) ||
      load_model(&load, &model, &error) || shohin_chat_new(model, &options, &chat, &error))
    return failed(&error);
  while (read_line(line, sizeof line)) {
    if (shohin_chat_send(chat, line, SHOHIN_CSTR, &error)) {
      failed(&error); /* such as a line that is not UTF-8: the chat goes on */
      continue;
    }
    while ((code = shohin_chat_next(chat, &piece, &error)) == SHOHIN_OK) print(piece.text, piece.text_len);
    if (code != SHOHIN_DONE) return failed(&error);
    print("\n", 1);
  }
  print_number("# memory ", shohin_memory_used());
  print_number("# memory-peak ", shohin_memory_peak());
  shohin_chat_free(chat);
  shohin_model_free(model);
  return shohin_memory_used() > 0;
}
