/* Calls every function of shohin.h: as it should be called, and with NULL, short buffers, wrong handles, bad UTF-8 and bad
 * files. symbols MODEL.gguf DIRECTORY MESSAGE TOOLS.gguf ADAPTER.gguf [LEARNER.gguf] prints a greedy reply; TOOLS.gguf is a model of
 * another vocabulary that can call functions, ADAPTER.gguf an adapter for MODEL.gguf, LEARNER.gguf a model that is taught. */
#define _POSIX_C_SOURCE 200809L

#include <shohin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(code, call)                                                                                              \
  do {                                                                                                                 \
    shohin_code found = (call);                                                                                        \
    if (found != (code)) {                                                                                             \
      fprintf(stderr, "line %d: %s is %s (%s), expected %s\n", __LINE__, #call, shohin_code_name(found),               \
              error.message, #code);                                                                                   \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)
#define TRUE(condition)                                                                                                \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "line %d: not %s\n", __LINE__, #condition);                                                      \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

static shohin_error error;

struct reply {
  shohin_chat *chat;
  char text[4096];
  size_t len;
  int stop_after;
  int interrupt_after;
};

static int32_t collect(void *data, const shohin_piece *piece) {
  struct reply *reply = data;
  TRUE(reply->len + piece->text_len < sizeof reply->text);
  TRUE(piece->text[piece->text_len] == 0 && piece->reasoning[piece->reasoning_len] == 0);
  memcpy(reply->text + reply->len, piece->text, piece->text_len + 1);
  reply->len += piece->text_len;
  /* A callback cannot use its own chat. */
  CHECK(SHOHIN_BUSY, shohin_chat_stop(reply->chat, &error));
  CHECK(SHOHIN_BUSY, shohin_chat_free(reply->chat));
  if (--reply->interrupt_after == 0) CHECK(SHOHIN_OK, shohin_chat_interrupt(reply->chat, &error));
  return --reply->stop_after == 0 ? 7 : 0;
}

static unsigned char *read_file(const char *path, size_t *len) {
  FILE *file = fopen(path, "rb");
  TRUE(file && !fseek(file, 0, SEEK_END));
  *len = (size_t)ftell(file);
  unsigned char *bytes = malloc(*len);
  rewind(file);
  TRUE(bytes && fread(bytes, 1, *len, file) == *len);
  fclose(file);
  return bytes;
}

static void errors(void) {
  TRUE(strcmp(shohin_code_name(SHOHIN_CONTEXT_FULL), "context_full") == 0);
  TRUE(!shohin_code_name(12345) && !shohin_code_name(-1));
  TRUE(strchr(shohin_version(), '.'));
  TRUE(sizeof error == 512);
}

static void loading(const char *path) {
  uint64_t word = 0;
  shohin_model *model = (shohin_model *)&word, *const unset = model;
  shohin_load_options options;
  size_t len, i;
  const size_t bad_sizes[] = {0, 3, sizeof(size_t), sizeof options - 4, sizeof options + 1, (size_t)1 << 40};
  unsigned char *bytes;
  struct {
    shohin_load_options known;
    uint64_t later;
  } longer;

  CHECK(SHOHIN_NULL, shohin_load_options_default(NULL, sizeof options, &error));
  CHECK(SHOHIN_SIZE, shohin_load_options_default(&options, 3, &error));
  CHECK(SHOHIN_SIZE, shohin_load_options_default(&options, sizeof(size_t), &error));
  CHECK(SHOHIN_OK, shohin_load_options_default(&options, sizeof options, &error));
  TRUE(options.size == sizeof options && error.code == SHOHIN_OK && !error.message[0]);

  CHECK(SHOHIN_NULL, shohin_model_load(path, SHOHIN_CSTR, NULL, NULL, &error));
  CHECK(SHOHIN_NULL, shohin_model_load(NULL, 0, NULL, &model, &error));
  CHECK(SHOHIN_NULL, shohin_model_load(NULL, SHOHIN_CSTR, NULL, &model, NULL));
  CHECK(SHOHIN_UTF8, shohin_model_load("\xff", 1, NULL, &model, &error));
  CHECK(SHOHIN_IO, shohin_model_load("no such file.gguf", SHOHIN_CSTR, NULL, &model, &error));
  TRUE(error.code == SHOHIN_IO && strstr(error.message, "no such file.gguf") && model == unset);
  TRUE(shohin_model_load("cow\0moo.gguf", 12, NULL, &model, &error) > SHOHIN_OTHER);
  TRUE(strstr(error.message, "cow\\0moo.gguf: ") && model == unset);
  CHECK(SHOHIN_NOT_A_FILE, shohin_model_load("/", 1, NULL, &model, &error));
  CHECK(SHOHIN_MALFORMED, shohin_model_load(__FILE__, SHOHIN_CSTR, NULL, &model, &error));
  CHECK(SHOHIN_ARGUMENT, shohin_model_load(path, SIZE_MAX - 1, NULL, &model, &error));

  for (i = 0; i < sizeof bad_sizes / sizeof *bad_sizes; i++) {
    options.size = bad_sizes[i];
    CHECK(SHOHIN_SIZE, shohin_model_load(path, SHOHIN_CSTR, &options, &model, &error));
  }
  options.size = sizeof options;
  options.kv_format = 99;
  CHECK(SHOHIN_OPTION, shohin_model_load(path, SHOHIN_CSTR, &options, &model, &error));
  options.kv_format = SHOHIN_KV_Q8;
  options.device = -1;
  CHECK(SHOHIN_OPTION, shohin_model_load(path, SHOHIN_CSTR, &options, &model, &error));
  options.device = SHOHIN_DEVICE_CPU;
  options.threads = UINT32_MAX;
  CHECK(SHOHIN_OPTION, shohin_model_load(path, SHOHIN_CSTR, &options, &model, &error));

  /* Structs of other versions of the header. */
  CHECK(SHOHIN_OK, shohin_load_options_default(&longer.known, sizeof longer, &error));
  TRUE(longer.known.size == sizeof longer && longer.later == 0);
  longer.known.device = SHOHIN_DEVICE_CPU;
  CHECK(SHOHIN_OK, shohin_model_load(path, SHOHIN_CSTR, &longer.known, &model, &error));
  CHECK(SHOHIN_OK, shohin_model_free(model));
  longer.later = 1;
  CHECK(SHOHIN_SIZE, shohin_model_load(path, SHOHIN_CSTR, &longer.known, &model, &error));
  CHECK(SHOHIN_OK, shohin_model_load_built_in(NULL, &model, &error));
  CHECK(SHOHIN_OK, shohin_model_free(model));
  CHECK(SHOHIN_NULL, shohin_model_load_built_in(NULL, NULL, &error));

  model = unset;
  bytes = read_file(path, &len);
  CHECK(SHOHIN_NULL, shohin_model_load_memory(NULL, len, NULL, &model, &error));
  CHECK(SHOHIN_NULL, shohin_model_load_memory(bytes, len, NULL, NULL, &error));
  CHECK(SHOHIN_TRUNCATED, shohin_model_load_memory(bytes, 0, NULL, &model, &error));
  CHECK(SHOHIN_TRUNCATED, shohin_model_load_memory(bytes, len / 2, NULL, &model, &error));
  CHECK(SHOHIN_MALFORMED, shohin_model_load_memory((const uint8_t *)"not a model", 11, NULL, &model, &error));
  CHECK(SHOHIN_NULL, shohin_model_load_in_place(NULL, len, NULL, &model, &error));
  CHECK(SHOHIN_NULL, shohin_model_load_in_place(bytes, len, NULL, NULL, &error));
  CHECK(SHOHIN_TRUNCATED, shohin_model_load_in_place(bytes, 0, NULL, &model, &error));
  CHECK(SHOHIN_TRUNCATED, shohin_model_load_in_place(bytes, len / 2, NULL, &model, &error));
  TRUE(model == unset);
  for (i = SHOHIN_KV_F32; i <= SHOHIN_KV_FP8_E5M2; i++) {
    shohin_chat *chat;
    shohin_piece piece = {.size = sizeof piece};
    CHECK(SHOHIN_OK, shohin_load_options_default(&options, sizeof options, &error));
    options.kv_format = (int32_t)i;
    CHECK(SHOHIN_OK, shohin_model_load_in_place(bytes, len, &options, &model, &error));
    CHECK(SHOHIN_OK, shohin_chat_new(model, NULL, &chat, &error));
    CHECK(SHOHIN_OK, shohin_chat_send(chat, "Hello!", 6, &error));
    CHECK(SHOHIN_OK, shohin_chat_next(chat, &piece, &error));
    TRUE(piece.token != SHOHIN_NO_TOKEN);
    CHECK(SHOHIN_OK, shohin_chat_free(chat));
    CHECK(SHOHIN_OK, shohin_model_free(model));
  }
  free(bytes);
}

static void tokens(const shohin_model *model, const void *other) {
  shohin_model_info info = {.size = sizeof info};
  uint32_t ids[64], wrong = UINT32_MAX;
  size_t count = 0, len = 0;
  char text[64];
  float *numbers;

  CHECK(SHOHIN_NULL, shohin_model_get_info(NULL, &info, &error));
  CHECK(SHOHIN_NULL, shohin_model_get_info(model, NULL, &error));
  CHECK(SHOHIN_HANDLE, shohin_model_get_info(other, &info, &error));
  CHECK(SHOHIN_OK, shohin_model_get_info(model, &info, &error));
  TRUE(info.vocab_size > 1 && info.embedding_size > 1 && info.context <= info.max_context && info.threads);
  /* Structs that are shorter than those of the first version, such as of the size of a pointer. */
  info.size = 2 * sizeof(size_t);
  info.embedding_size = 77;
  CHECK(SHOHIN_SIZE, shohin_model_get_info(model, &info, &error));
  TRUE(info.size == 2 * sizeof(size_t) && info.embedding_size == 77);
  info.size = sizeof info;
  CHECK(SHOHIN_OK, shohin_model_get_info(model, &info, &error));

  CHECK(SHOHIN_NULL, shohin_tokenize(NULL, "cow", 3, ids, 64, &count, &error));
  CHECK(SHOHIN_NULL, shohin_tokenize(model, NULL, 3, ids, 64, &count, &error));
  CHECK(SHOHIN_NULL, shohin_tokenize(model, "cow", 3, NULL, 64, &count, &error));
  CHECK(SHOHIN_NULL, shohin_tokenize(model, "cow", 3, ids, 64, NULL, &error));
  CHECK(SHOHIN_HANDLE, shohin_tokenize(other, "cow", 3, ids, 64, &count, &error));
  CHECK(SHOHIN_UTF8, shohin_tokenize(model, "a\xc3", 2, ids, 64, &count, &error));
  CHECK(SHOHIN_SHORT_BUFFER, shohin_tokenize(model, "a cow says moo", SHOHIN_CSTR, NULL, 0, &count, &error));
  TRUE(count > 1 && count < 64);
  ids[count - 1] = 4242;
  CHECK(SHOHIN_SHORT_BUFFER, shohin_tokenize(model, "a cow says moo", 14, ids, count - 1, &count, &error));
  TRUE(ids[count - 1] == 4242);
  CHECK(SHOHIN_OK, shohin_tokenize(model, "a cow says moo", 14, ids, count, &count, &error));

  CHECK(SHOHIN_NULL, shohin_detokenize(NULL, ids, count, text, 64, &len, &error));
  CHECK(SHOHIN_NULL, shohin_detokenize(model, NULL, count, text, 64, &len, &error));
  CHECK(SHOHIN_NULL, shohin_detokenize(model, ids, count, NULL, 64, &len, &error));
  CHECK(SHOHIN_NULL, shohin_detokenize(model, ids, count, text, 64, NULL, &error));
  CHECK(SHOHIN_HANDLE, shohin_detokenize(other, ids, count, text, 64, &len, &error));
  CHECK(SHOHIN_TOKEN, shohin_detokenize(model, &wrong, 1, text, 64, &len, &error));
  CHECK(SHOHIN_SHORT_BUFFER, shohin_detokenize(model, ids, count, text, 3, &len, &error));
  TRUE(len == 14);
  CHECK(SHOHIN_OK, shohin_detokenize(model, ids, count, text, 14, &len, &error));
  TRUE(len == 14 && !memcmp(text, "a cow says moo", 14));

  numbers = malloc((info.vocab_size + info.embedding_size) * sizeof *numbers);
  TRUE(numbers);
  CHECK(SHOHIN_NULL, shohin_embed(NULL, "cow", 3, numbers, info.embedding_size, &len, &error));
  CHECK(SHOHIN_NULL, shohin_embed(model, NULL, 3, numbers, info.embedding_size, &len, &error));
  CHECK(SHOHIN_NULL, shohin_embed(model, "cow", 3, numbers, info.embedding_size, NULL, &error));
  CHECK(SHOHIN_NULL, shohin_embed(model, "cow", 3, NULL, info.embedding_size, &len, &error));
  CHECK(SHOHIN_HANDLE, shohin_embed(other, "cow", 3, numbers, info.embedding_size, &len, &error));
  CHECK(SHOHIN_SHORT_BUFFER, shohin_embed(model, "cow", 3, numbers, 1, &len, &error));
  CHECK(SHOHIN_OK, shohin_embed(model, "cow", 3, numbers, info.embedding_size, &len, &error));
  TRUE(len == info.embedding_size);
  {
    double squares = 0;
    for (size_t i = 0; i < len; i++) squares += (double)numbers[i] * numbers[i];
    TRUE(squares > 0.999 && squares < 1.001);
  }

  {
    const shohin_text texts[] = {{"cow", 3}, {"dog", SHOHIN_CSTR}, {"cow", 3}};
    const size_t size = info.embedding_size;
    float *vectors = malloc(3 * size * sizeof *vectors);
    TRUE(vectors);
    CHECK(SHOHIN_NULL, shohin_embed_texts(NULL, texts, 3, vectors, 3 * size, &len, &error));
    CHECK(SHOHIN_HANDLE, shohin_embed_texts(other, texts, 3, vectors, 3 * size, &len, &error));
    CHECK(SHOHIN_NULL, shohin_embed_texts(model, NULL, 3, vectors, 3 * size, &len, &error));
    CHECK(SHOHIN_NULL, shohin_embed_texts(model, texts, 3, NULL, 3 * size, &len, &error));
    CHECK(SHOHIN_NULL, shohin_embed_texts(model, texts, 3, vectors, 3 * size, NULL, &error));
    len = 0;
    CHECK(SHOHIN_SHORT_BUFFER, shohin_embed_texts(model, texts, 3, NULL, 0, &len, &error));
    TRUE(len == 3 * size);
    CHECK(SHOHIN_OK, shohin_embed_texts(model, texts, 3, vectors, 3 * size, &len, &error));
    TRUE(len == 3 * size && !memcmp(vectors, numbers, size * sizeof *vectors));
    TRUE(!memcmp(vectors, vectors + 2 * size, size * sizeof *vectors));
    TRUE(memcmp(vectors, vectors + size, size * sizeof *vectors));
    CHECK(SHOHIN_OK, shohin_embed_texts(model, NULL, 0, vectors, 0, &len, &error));
    TRUE(len == 0);
    free(vectors);
  }

  CHECK(SHOHIN_NULL, shohin_logits(NULL, ids, count, numbers, info.vocab_size, &len, &error));
  CHECK(SHOHIN_NULL, shohin_logits(model, NULL, count, numbers, info.vocab_size, &len, &error));
  CHECK(SHOHIN_NULL, shohin_logits(model, ids, count, NULL, info.vocab_size, &len, &error));
  CHECK(SHOHIN_NULL, shohin_logits(model, ids, count, numbers, info.vocab_size, NULL, &error));
  CHECK(SHOHIN_HANDLE, shohin_logits(other, ids, count, numbers, info.vocab_size, &len, &error));
  CHECK(SHOHIN_TOKEN, shohin_logits(model, &wrong, 1, numbers, info.vocab_size, &len, &error));
  TRUE(shohin_logits(model, ids, 0, numbers, info.vocab_size, &len, &error) > SHOHIN_OTHER);
  CHECK(SHOHIN_SHORT_BUFFER, shohin_logits(model, ids, count, numbers, 1, &len, &error));
  CHECK(SHOHIN_OK, shohin_logits(model, ids, count, numbers, info.vocab_size, &len, &error));
  TRUE(len == info.vocab_size);
  free(numbers);
}

static void pull(shohin_chat *chat, struct reply *reply) {
  shohin_piece piece = {.size = sizeof piece};
  shohin_code code;
  int32_t reason = SHOHIN_REASON_NONE;
  reply->len = 0;
  while ((code = shohin_chat_next(chat, &piece, &error)) == SHOHIN_OK) {
    TRUE(reply->len + piece.text_len < sizeof reply->text);
    memcpy(reply->text + reply->len, piece.text, piece.text_len + 1);
    reply->len += piece.text_len;
    reason = piece.reason;
  }
  CHECK(SHOHIN_DONE, code);
  TRUE(reason != SHOHIN_REASON_NONE && piece.text_len == 0 && !piece.text[0]);
  CHECK(SHOHIN_DONE, shohin_chat_next(chat, &piece, &error));
}

static void chats(shohin_model *model, const char *directory, const char *message) {
  shohin_chat *chat = NULL, *copy = NULL, *wrong = (shohin_chat *)model;
  shohin_chat_options options;
  shohin_piece piece = {.size = sizeof piece};
  shohin_usage usage = {.size = sizeof usage};
  struct reply pulled = {0}, streamed = {0}, again = {0};
  char path[1024];
  uint32_t ids[64];
  size_t count, prompt_tokens;

  CHECK(SHOHIN_NULL, shohin_chat_options_default(NULL, sizeof options, &error));
  CHECK(SHOHIN_SIZE, shohin_chat_options_default(&options, 0, &error));
  CHECK(SHOHIN_OK, shohin_chat_options_default(&options, sizeof options, &error));
  TRUE(options.size == sizeof options && options.temperature > 0 && options.top_k > 0);
  options.temperature = 0;
  options.max_tokens = 40;

  CHECK(SHOHIN_NULL, shohin_chat_new(NULL, &options, &chat, &error));
  CHECK(SHOHIN_NULL, shohin_chat_new(model, &options, NULL, &error));
  options.format = 77;
  CHECK(SHOHIN_OPTION, shohin_chat_new(model, &options, &chat, &error));
  options.format = SHOHIN_FORMAT_REGEX;
  CHECK(SHOHIN_NULL, shohin_chat_new(model, &options, &chat, &error));
  options.format_text = "(";
  options.format_text_len = SHOHIN_CSTR;
  TRUE(shohin_chat_new(model, &options, &chat, &error) > SHOHIN_OTHER && !chat);
  options.format = SHOHIN_FORMAT_TEXT;
  options.thinking = -5;
  CHECK(SHOHIN_OPTION, shohin_chat_new(model, &options, &chat, &error));
  options.thinking = SHOHIN_THINKING_OFF;
  CHECK(SHOHIN_OK, shohin_chat_new(model, &options, &chat, &error));
  copy = chat;
  CHECK(SHOHIN_NULL, shohin_chat_new(NULL, &options, &copy, &error));
  TRUE(copy == chat);
  CHECK(SHOHIN_HANDLE, shohin_chat_new((shohin_model *)chat, &options, &copy, &error));
  CHECK(SHOHIN_HANDLE, shohin_chat_new((shohin_model *)((char *)model + 1), &options, &copy, &error));

  /* Wrong handles and arguments. */
  CHECK(SHOHIN_NULL, shohin_chat_set_options(NULL, &options, &error));
  CHECK(SHOHIN_NULL, shohin_chat_set_options(chat, NULL, &error));
  CHECK(SHOHIN_HANDLE, shohin_chat_set_options(wrong, &options, &error));
  CHECK(SHOHIN_NULL, shohin_chat_system(NULL, "x", 1, &error));
  CHECK(SHOHIN_NULL, shohin_chat_system(chat, NULL, 1, &error));
  CHECK(SHOHIN_HANDLE, shohin_chat_system(wrong, "x", 1, &error));
  CHECK(SHOHIN_NULL, shohin_chat_send(NULL, "x", 1, &error));
  CHECK(SHOHIN_NULL, shohin_chat_send(chat, NULL, 1, &error));
  CHECK(SHOHIN_UTF8, shohin_chat_send(chat, "x\xed\xa0\x80", 4, &error));
  CHECK(SHOHIN_HANDLE, shohin_chat_send(wrong, "x", 1, &error));
  CHECK(SHOHIN_NULL, shohin_chat_next(NULL, &piece, &error));
  CHECK(SHOHIN_NULL, shohin_chat_next(chat, NULL, &error));
  CHECK(SHOHIN_HANDLE, shohin_chat_next(wrong, &piece, &error));
  CHECK(SHOHIN_DONE, shohin_chat_next(chat, &piece, &error));
  piece.size = sizeof(shohin_piece *);
  CHECK(SHOHIN_SIZE, shohin_chat_next(chat, &piece, &error));
  piece.size = sizeof piece;
  usage.size = sizeof usage - sizeof(size_t);
  CHECK(SHOHIN_SIZE, shohin_chat_get_usage(chat, &usage, &error));
  usage.size = sizeof usage;
  options.size = sizeof(size_t);
  CHECK(SHOHIN_SIZE, shohin_chat_set_options(chat, &options, &error));
  options.size = sizeof options;
  CHECK(SHOHIN_NULL, shohin_chat_stop(NULL, &error));
  CHECK(SHOHIN_HANDLE, shohin_chat_stop(wrong, &error));
  CHECK(SHOHIN_OK, shohin_chat_stop(chat, &error));
  CHECK(SHOHIN_NULL, shohin_chat_interrupt(NULL, &error));
  CHECK(SHOHIN_HANDLE, shohin_chat_interrupt(wrong, &error));
  CHECK(SHOHIN_NULL, shohin_chat_retry(NULL, &error));
  CHECK(SHOHIN_HANDLE, shohin_chat_retry(wrong, &error));
  CHECK(SHOHIN_ARGUMENT, shohin_chat_retry(chat, &error));
  CHECK(SHOHIN_NULL, shohin_chat_speculate(NULL, NULL, &error));
  CHECK(SHOHIN_HANDLE, shohin_chat_speculate(wrong, NULL, &error));
  CHECK(SHOHIN_HANDLE, shohin_chat_speculate(chat, (shohin_model *)chat, &error));
  CHECK(SHOHIN_NULL, shohin_chat_stream(NULL, "x", 1, collect, NULL, &error));
  CHECK(SHOHIN_NULL, shohin_chat_stream(chat, NULL, 1, collect, NULL, &error));
  CHECK(SHOHIN_NULL, shohin_chat_stream(chat, "x", 1, NULL, NULL, &error));
  CHECK(SHOHIN_HANDLE, shohin_chat_stream(wrong, "x", 1, collect, NULL, &error));
  CHECK(SHOHIN_NULL, shohin_chat_get_usage(NULL, &usage, &error));
  CHECK(SHOHIN_NULL, shohin_chat_get_usage(chat, NULL, &error));
  CHECK(SHOHIN_HANDLE, shohin_chat_get_usage(wrong, &usage, &error));
  CHECK(SHOHIN_NULL, shohin_chat_complete(NULL, ids, 1, &error));
  CHECK(SHOHIN_NULL, shohin_chat_complete(chat, NULL, 1, &error));
  CHECK(SHOHIN_HANDLE, shohin_chat_complete(wrong, ids, 1, &error));
  CHECK(SHOHIN_NULL, shohin_chat_save(NULL, "x", 1, &error));
  CHECK(SHOHIN_NULL, shohin_chat_save(chat, NULL, 1, &error));
  CHECK(SHOHIN_HANDLE, shohin_chat_save(wrong, "x", 1, &error));
  CHECK(SHOHIN_IO, shohin_chat_save(chat, "/no/such/directory/x", SHOHIN_CSTR, &error));
  CHECK(SHOHIN_NULL, shohin_chat_open(NULL, "x", 1, &error));
  CHECK(SHOHIN_NULL, shohin_chat_open(chat, NULL, 1, &error));
  CHECK(SHOHIN_HANDLE, shohin_chat_open(wrong, "x", 1, &error));
  CHECK(SHOHIN_IO, shohin_chat_open(chat, "no such session", SHOHIN_CSTR, &error));
  CHECK(SHOHIN_SNAPSHOT_FOREIGN, shohin_chat_open(chat, __FILE__, SHOHIN_CSTR, &error));
  CHECK(SHOHIN_HANDLE, shohin_chat_free(wrong));
  CHECK(SHOHIN_HANDLE, shohin_model_free((shohin_model *)chat));

  /* An option out of range fails at the message, and nothing is sent. */
  options.temperature = -1;
  CHECK(SHOHIN_OK, shohin_chat_set_options(chat, &options, &error));
  CHECK(SHOHIN_OPTION, shohin_chat_send(chat, message, SHOHIN_CSTR, &error));
  CHECK(SHOHIN_DONE, shohin_chat_next(chat, &piece, &error));
  options.temperature = 0;
  CHECK(SHOHIN_OK, shohin_chat_set_options(chat, &options, &error));

  /* The reply, pulled and given to a callback. */
  CHECK(SHOHIN_OK, shohin_chat_send(chat, message, SHOHIN_CSTR, &error));
  pull(chat, &pulled);
  CHECK(SHOHIN_OK, shohin_chat_get_usage(chat, &usage, &error));
  TRUE(usage.prompt_tokens && usage.reply_tokens && usage.position && usage.capacity >= usage.position);
  prompt_tokens = usage.prompt_tokens;
  CHECK(SHOHIN_OK, shohin_chat_new(model, &options, &copy, &error));
  streamed.chat = copy;
  CHECK(SHOHIN_OK, shohin_chat_stream(copy, message, strlen(message), collect, &streamed, &error));
  TRUE(pulled.len > 0 && !strcmp(pulled.text, streamed.text));

  /* A session in a file goes on the same way. */
  snprintf(path, sizeof path, "%s/c.session", directory);
  CHECK(SHOHIN_OK, shohin_chat_save(chat, path, SHOHIN_CSTR, &error));
  CHECK(SHOHIN_OK, shohin_chat_free(copy));
  CHECK(SHOHIN_OK, shohin_chat_new(model, &options, &copy, &error));
  {
    size_t len;
    unsigned char *bytes = read_file(path, &len);
    char cut[1024];
    FILE *file;
    snprintf(cut, sizeof cut, "%s/cut.session", directory);
    file = fopen(cut, "wb");
    TRUE(file && fwrite(bytes, 1, len - 9, file) == len - 9 && !fclose(file));
    CHECK(SHOHIN_SNAPSHOT_DAMAGED, shohin_chat_open(copy, cut, SHOHIN_CSTR, &error));
    free(bytes);
  }
  CHECK(SHOHIN_OK, shohin_chat_open(copy, path, SHOHIN_CSTR, &error));
  CHECK(SHOHIN_OK, shohin_chat_send(chat, "And a dog?", SHOHIN_CSTR, &error));
  pull(chat, &streamed);
  CHECK(SHOHIN_OK, shohin_chat_send(copy, "And a dog?", SHOHIN_CSTR, &error));
  pull(copy, &again);
  TRUE(!strcmp(streamed.text, again.text));
  CHECK(SHOHIN_OK, shohin_chat_get_usage(copy, &usage, &error));
  TRUE(usage.cached_tokens > 0);

  /* Stopped: by the callback, by a call, by another message. */
  memset(&streamed, 0, sizeof streamed);
  streamed.chat = copy;
  streamed.stop_after = 2;
  CHECK(SHOHIN_OK, shohin_chat_system(copy, "You are a farmer.", SHOHIN_CSTR, &error));
  CHECK(SHOHIN_OK, shohin_chat_stream(copy, message, SHOHIN_CSTR, collect, &streamed, &error));
  TRUE(streamed.stop_after == 0);
  CHECK(SHOHIN_OK, shohin_chat_send(copy, message, SHOHIN_CSTR, &error));
  CHECK(SHOHIN_OK, shohin_chat_get_usage(copy, &usage, &error));
  TRUE(usage.prompt_seconds == 0 && usage.reply_seconds == 0);
  CHECK(SHOHIN_OK, shohin_chat_next(copy, &piece, &error));
  CHECK(SHOHIN_OK, shohin_chat_get_usage(copy, &usage, &error));
  TRUE(usage.prompt_seconds > 0 && usage.reply_seconds == 0);
  CHECK(SHOHIN_OK, shohin_chat_stop(copy, &error));
  while (shohin_chat_next(copy, &piece, &error) == SHOHIN_OK) TRUE(piece.reason == SHOHIN_REASON_CANCELLED);
  CHECK(SHOHIN_OK, shohin_chat_send(copy, message, SHOHIN_CSTR, &error));
  CHECK(SHOHIN_OK, shohin_chat_next(copy, &piece, &error));
  CHECK(SHOHIN_OK, shohin_chat_send(copy, message, SHOHIN_CSTR, &error));
  pull(copy, &again);

  /* Interrupted: before the prompt, which is not computed then; in a callback; without a reply in progress. */
  CHECK(SHOHIN_OK, shohin_chat_send(copy, message, SHOHIN_CSTR, &error));
  CHECK(SHOHIN_OK, shohin_chat_interrupt(copy, &error));
  CHECK(SHOHIN_OK, shohin_chat_next(copy, &piece, &error));
  TRUE(piece.reason == SHOHIN_REASON_CANCELLED && piece.token == SHOHIN_NO_TOKEN && !piece.text_len);
  CHECK(SHOHIN_DONE, shohin_chat_next(copy, &piece, &error));
  memset(&streamed, 0, sizeof streamed);
  streamed.chat = copy;
  streamed.interrupt_after = 2;
  CHECK(SHOHIN_OK, shohin_chat_stream(copy, message, SHOHIN_CSTR, collect, &streamed, &error));
  TRUE(streamed.interrupt_after == -1);
  CHECK(SHOHIN_OK, shohin_chat_interrupt(copy, &error));

  /* No instructions are as if none were set. */
  CHECK(SHOHIN_OK, shohin_chat_system(copy, "", 0, &error));
  CHECK(SHOHIN_OK, shohin_chat_send(copy, message, SHOHIN_CSTR, &error));
  pull(copy, &again);
  CHECK(SHOHIN_OK, shohin_chat_get_usage(copy, &usage, &error));
  TRUE(!strcmp(pulled.text, again.text) && usage.prompt_tokens == prompt_tokens);

  /* A message that ended before any text is not kept, and the one before it is not answered in its place. */
  for (count = 0; count < 3; count++) {
    CHECK(SHOHIN_OK, shohin_chat_send(copy, "And a dog?", SHOHIN_CSTR, &error));
    if (count == 0) CHECK(SHOHIN_OK, shohin_chat_stop(copy, &error));
    if (count == 1) CHECK(SHOHIN_OK, shohin_chat_interrupt(copy, &error));
    if (count == 1) CHECK(SHOHIN_OK, shohin_chat_next(copy, &piece, &error));
    CHECK(SHOHIN_ARGUMENT, shohin_chat_retry(copy, &error));
    TRUE(strstr(error.message, "send it again"));
    CHECK(SHOHIN_ARGUMENT, shohin_chat_retry(copy, &error));
    CHECK(SHOHIN_OK, shohin_chat_send(copy, message, SHOHIN_CSTR, &error));
    pull(copy, &again);
    CHECK(SHOHIN_OK, shohin_chat_retry(copy, &error));
    CHECK(SHOHIN_OK, shohin_chat_stop(copy, &error));
    CHECK(SHOHIN_OK, shohin_chat_retry(copy, &error));
    pull(copy, &streamed);
    TRUE(!strcmp(streamed.text, again.text));
  }
  CHECK(SHOHIN_OK, shohin_chat_send(copy, message, SHOHIN_CSTR, &error));
  CHECK(SHOHIN_OK, shohin_chat_open(copy, path, SHOHIN_CSTR, &error));
  CHECK(SHOHIN_OK, shohin_chat_retry(copy, &error));
  pull(copy, &again);
  TRUE(!strcmp(pulled.text, again.text));

  /* A text that ends the reply. */
  {
    const shohin_text stop[2] = {{"never", 5}, {pulled.text + 3, 4}};
    options.stop = stop;
    options.stop_count = 2;
    CHECK(SHOHIN_OK, shohin_chat_free(copy));
    CHECK(SHOHIN_OK, shohin_chat_new(model, &options, &copy, &error));
    CHECK(SHOHIN_OK, shohin_chat_send(copy, message, SHOHIN_CSTR, &error));
    pull(copy, &again);
    TRUE(again.len == 3 && !strncmp(again.text, pulled.text, 3));
    options.stop = NULL;
    CHECK(SHOHIN_NULL, shohin_chat_set_options(copy, &options, &error));
    options.stop_count = 0;
    CHECK(SHOHIN_OK, shohin_chat_set_options(copy, &options, &error));
  }

  /* With guesses the reply is the same. */
  CHECK(SHOHIN_OK, shohin_chat_free(copy));
  CHECK(SHOHIN_OK, shohin_chat_new(model, &options, &copy, &error));
  CHECK(SHOHIN_OK, shohin_chat_speculate(copy, NULL, &error));
  CHECK(SHOHIN_OK, shohin_chat_send(copy, message, SHOHIN_CSTR, &error));
  pull(copy, &again);
  TRUE(!strcmp(pulled.text, again.text));

  /* Another reply to the message takes the place of the last. */
  CHECK(SHOHIN_OK, shohin_chat_retry(copy, &error));
  pull(copy, &again);
  TRUE(!strcmp(pulled.text, again.text));
  CHECK(SHOHIN_OK, shohin_chat_system(copy, "", 0, &error));
  CHECK(SHOHIN_OK, shohin_chat_speculate(copy, model, &error));
  CHECK(SHOHIN_OK, shohin_chat_send(copy, message, SHOHIN_CSTR, &error));
  pull(copy, &again);
  CHECK(SHOHIN_OK, shohin_chat_get_usage(copy, &usage, &error));
  /* The model guesses itself. */
  TRUE(usage.guesses_right > 0 && usage.guesses_checked >= usage.guesses_right);

  /* A reply with a form; plain text. */
  options.format = SHOHIN_FORMAT_REGEX;
  options.format_text = "(cow|dog)s?";
  options.format_text_len = strlen(options.format_text);
  CHECK(SHOHIN_OK, shohin_chat_set_options(copy, &options, &error));
  CHECK(SHOHIN_OK, shohin_chat_send(copy, message, SHOHIN_CSTR, &error));
  pull(copy, &again);
  TRUE(!strncmp(again.text, "cow", 3) || !strncmp(again.text, "dog", 3));
  options.format = SHOHIN_FORMAT_TEXT;
  options.max_tokens = 3;
  CHECK(SHOHIN_OK, shohin_chat_set_options(copy, &options, &error));
  CHECK(SHOHIN_OK, shohin_tokenize(model, "The cow", 7, ids, 64, &count, &error));
  CHECK(SHOHIN_OK, shohin_chat_complete(copy, ids, count, &error));
  pull(copy, &again);
  CHECK(SHOHIN_OK, shohin_chat_get_usage(copy, &usage, &error));
  TRUE(usage.reply_tokens <= 3);

  /* Chats outlive their model, and are freed in the middle of a reply. */
  CHECK(SHOHIN_OK, shohin_model_free(model));
  CHECK(SHOHIN_OK, shohin_chat_send(copy, message, SHOHIN_CSTR, &error));
  CHECK(SHOHIN_OK, shohin_chat_next(copy, &piece, &error));
  CHECK(SHOHIN_OK, shohin_chat_free(copy));
  CHECK(SHOHIN_OK, shohin_chat_free(chat));
  CHECK(SHOHIN_OK, shohin_chat_free(NULL));
  CHECK(SHOHIN_OK, shohin_model_free(NULL));
  fwrite(pulled.text, 1, pulled.len, stdout);
}

/* Messages and requests as JSON texts, and options that go with them. */
static void requests(const shohin_model *model, const char *message) {
  shohin_chat *chat = NULL, *wrong = (shohin_chat *)model;
  shohin_chat_options options;
  shohin_piece piece = {.size = sizeof piece};
  shohin_text answer = {NULL, 7};
  struct reply first = {0}, second = {0};
  char json[4096], request[512];
  const char history[] = "[{\"role\":\"system\",\"content\":\"You are a farmer.\"},"
                         "{\"role\":\"user\",\"content\":\"Hi!\"},{\"role\":\"assistant\",\"content\":\"Hello!\"}]";
  const shohin_text choices[] = {{"moo", 3}, {"woof", 4}};
  size_t len, chunks = 0, measured = 0;
  shohin_code code;

  CHECK(SHOHIN_OK, shohin_chat_options_default(&options, sizeof options, &error));
  TRUE(options.logprobs == SHOHIN_NO_LOGPROBS && options.presence_penalty == 0 && options.describe_tools == 0);
  options.temperature = 0;
  options.max_tokens = 40;
  CHECK(SHOHIN_OK, shohin_chat_new(model, &options, &chat, &error));

  /* Wrong handles and arguments. */
  CHECK(SHOHIN_NULL, shohin_chat_set_messages(NULL, "[]", 2, &error));
  CHECK(SHOHIN_NULL, shohin_chat_set_messages(chat, NULL, 2, &error));
  CHECK(SHOHIN_HANDLE, shohin_chat_set_messages(wrong, "[]", 2, &error));
  TRUE(shohin_chat_set_messages(chat, "[", 1, &error) > SHOHIN_OTHER);
  CHECK(SHOHIN_ARGUMENT, shohin_chat_set_messages(chat, "[{\"role\":\"cow\"}]", SHOHIN_CSTR, &error));
  CHECK(SHOHIN_NULL, shohin_chat_get_messages(NULL, json, sizeof json, &len, &error));
  CHECK(SHOHIN_NULL, shohin_chat_get_messages(chat, json, sizeof json, NULL, &error));
  CHECK(SHOHIN_HANDLE, shohin_chat_get_messages(wrong, json, sizeof json, &len, &error));
  CHECK(SHOHIN_NULL, shohin_chat_send_messages(NULL, history, SHOHIN_CSTR, &error));
  CHECK(SHOHIN_NULL, shohin_chat_send_messages(chat, NULL, 1, &error));
  CHECK(SHOHIN_HANDLE, shohin_chat_send_messages(wrong, history, SHOHIN_CSTR, &error));
  CHECK(SHOHIN_ARGUMENT, shohin_chat_send_messages(chat, "[]", 2, &error));
  CHECK(SHOHIN_NULL, shohin_chat_request(NULL, "{}", 2, &error));
  CHECK(SHOHIN_NULL, shohin_chat_request(chat, NULL, 2, &error));
  CHECK(SHOHIN_HANDLE, shohin_chat_request(wrong, "{}", 2, &error));
  CHECK(SHOHIN_ARGUMENT, shohin_chat_request(chat, "{}", 2, &error));
  CHECK(SHOHIN_NULL, shohin_chat_next_answer(NULL, &answer, &error));
  CHECK(SHOHIN_NULL, shohin_chat_next_answer(chat, NULL, &error));
  CHECK(SHOHIN_HANDLE, shohin_chat_next_answer(wrong, &answer, &error));
  TRUE(!answer.text);
  CHECK(SHOHIN_DONE, shohin_chat_next_answer(chat, &answer, &error));
  TRUE(answer.len == 0 && !answer.text[0]);

  /* A conversation from elsewhere goes on as the same one does. */
  CHECK(SHOHIN_OK, shohin_chat_get_messages(chat, json, sizeof json, &len, &error));
  TRUE(len == 2 && !memcmp(json, "[]", 2));
  CHECK(SHOHIN_OK, shohin_chat_set_messages(chat, history, SHOHIN_CSTR, &error));
  CHECK(SHOHIN_SHORT_BUFFER, shohin_chat_get_messages(chat, NULL, 0, &len, &error));
  TRUE(len == sizeof history - 1);
  CHECK(SHOHIN_OK, shohin_chat_get_messages(chat, json, sizeof json, &len, &error));
  TRUE(len == sizeof history - 1 && !memcmp(json, history, len));
  CHECK(SHOHIN_OK, shohin_chat_send(chat, message, SHOHIN_CSTR, &error));
  CHECK(SHOHIN_OK, shohin_chat_get_messages(chat, json, sizeof json, &len, &error));
  TRUE(len == sizeof history - 1);
  pull(chat, &first);
  CHECK(SHOHIN_OK, shohin_chat_set_messages(chat, history, SHOHIN_CSTR, &error));
  snprintf(request, sizeof request, "[{\"role\":\"user\",\"content\":\"%s\"}]", message);
  CHECK(SHOHIN_OK, shohin_chat_send_messages(chat, request, SHOHIN_CSTR, &error));
  pull(chat, &second);
  TRUE(first.len && !strcmp(first.text, second.text));

  /* A request is answered as a whole and in chunks, and leaves the options of the chat alone. */
  snprintf(request, sizeof request,
           "{\"temperature\":0,\"max_tokens\":3,\"logprobs\":true,\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}",
           message);
  CHECK(SHOHIN_OK, shohin_chat_request(chat, request, SHOHIN_CSTR, &error));
  CHECK(SHOHIN_OK, shohin_chat_next_answer(chat, &answer, &error));
  TRUE(strlen(answer.text) == answer.len && strstr(answer.text, "\"object\":\"chat.completion\""));
  TRUE(strstr(answer.text, "\"finish_reason\":\"length\"") && strstr(answer.text, "\"completion_tokens\":3"));
  TRUE(strstr(answer.text, "\"logprob\":"));
  CHECK(SHOHIN_DONE, shohin_chat_next_answer(chat, &answer, &error));
  CHECK(SHOHIN_DONE, shohin_chat_next(chat, &piece, &error));
  snprintf(request, sizeof request,
           "{\"temperature\":0,\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}", message);
  CHECK(SHOHIN_OK, shohin_chat_request(chat, request, SHOHIN_CSTR, &error));
  while ((code = shohin_chat_next_answer(chat, &answer, &error)) == SHOHIN_OK) {
    TRUE(strstr(answer.text, "\"object\":\"chat.completion.chunk\""));
    chunks++;
  }
  CHECK(SHOHIN_DONE, code);
  TRUE(chunks > 3);
  CHECK(SHOHIN_OK, shohin_chat_request(chat, request, SHOHIN_CSTR, &error));
  CHECK(SHOHIN_OK, shohin_chat_next_answer(chat, &answer, &error));
  CHECK(SHOHIN_OK, shohin_chat_interrupt(chat, &error));
  CHECK(SHOHIN_OK, shohin_chat_next_answer(chat, &answer, &error));
  TRUE(strstr(answer.text, "\"finish_reason\":\"stop\""));
  CHECK(SHOHIN_DONE, shohin_chat_next_answer(chat, &answer, &error));
  CHECK(SHOHIN_OK, shohin_chat_set_messages(chat, history, SHOHIN_CSTR, &error));
  CHECK(SHOHIN_OK, shohin_chat_send(chat, message, SHOHIN_CSTR, &error));
  pull(chat, &second);
  TRUE(!strcmp(first.text, second.text));

  /* Log-probabilities: as many as tokens, none of them over 0, the chosen one first where it is the most likely. */
  options.logprobs = 21;
  CHECK(SHOHIN_OPTION, shohin_chat_set_options(chat, &options, &error));
  options.logprobs = 2;
  options.describe_tools = 2;
  CHECK(SHOHIN_OPTION, shohin_chat_set_options(chat, &options, &error));
  options.describe_tools = 0;
  CHECK(SHOHIN_OK, shohin_chat_set_options(chat, &options, &error));
  CHECK(SHOHIN_OK, shohin_chat_send(chat, message, SHOHIN_CSTR, &error));
  while ((code = shohin_chat_next(chat, &piece, &error)) == SHOHIN_OK) {
    for (size_t i = 0; i < piece.logprob_count; i++) {
      const shohin_token_logprob *one = &piece.logprobs[i];
      TRUE(one->chosen.logprob <= 0 && one->top_count == 2 && one->top[0].token == one->chosen.token);
      TRUE(one->top[0].logprob == one->chosen.logprob && one->top[1].logprob <= one->top[0].logprob);
      measured++;
    }
  }
  CHECK(SHOHIN_DONE, code);
  TRUE(measured > 3);
  options.logprobs = SHOHIN_NO_LOGPROBS;

  /* One of some texts; penalties; tools for a model whose template has none. */
  options.format = SHOHIN_FORMAT_CHOICE;
  TRUE(shohin_chat_set_options(chat, &options, &error) > SHOHIN_OTHER);
  options.choice_count = 2;
  CHECK(SHOHIN_NULL, shohin_chat_set_options(chat, &options, &error));
  options.choices = choices;
  CHECK(SHOHIN_OK, shohin_chat_set_options(chat, &options, &error));
  CHECK(SHOHIN_OK, shohin_chat_send(chat, message, SHOHIN_CSTR, &error));
  pull(chat, &second);
  TRUE(!strcmp(second.text, "moo") || !strcmp(second.text, "woof"));
  options.format = SHOHIN_FORMAT_TEXT;
  for (int i = 0; i < 2; i++) {
    CHECK(SHOHIN_OK, shohin_chat_set_options(chat, &options, &error));
    CHECK(SHOHIN_OK, shohin_chat_set_messages(chat, "[]", 2, &error));
    CHECK(SHOHIN_OK, shohin_chat_send(chat, "Tell me a story.", SHOHIN_CSTR, &error));
    pull(chat, i ? &second : &first);
    options.presence_penalty = 2;
    options.frequency_penalty = 2;
  }
  TRUE(strcmp(first.text, second.text));
  options.presence_penalty = strtof("inf", NULL);
  CHECK(SHOHIN_OK, shohin_chat_set_options(chat, &options, &error));
  CHECK(SHOHIN_OPTION, shohin_chat_send(chat, message, SHOHIN_CSTR, &error));
  options.presence_penalty = options.frequency_penalty = 0;
  {
    const shohin_text tool = {"{\"name\":\"moo\"}", SHOHIN_CSTR};
    options.tools = &tool;
    options.tool_count = 1;
    options.tool_choice = "required";
    options.tool_choice_len = SHOHIN_CSTR;
    options.max_tokens = 200;
    CHECK(SHOHIN_OK, shohin_chat_set_options(chat, &options, &error));
    CHECK(SHOHIN_UNSUPPORTED, shohin_chat_send(chat, message, SHOHIN_CSTR, &error));
    options.describe_tools = 1;
    CHECK(SHOHIN_OK, shohin_chat_set_options(chat, &options, &error));
    CHECK(SHOHIN_OK, shohin_chat_send(chat, message, SHOHIN_CSTR, &error));
    len = 0;
    while ((code = shohin_chat_next(chat, &piece, &error)) == SHOHIN_OK) {
      for (size_t i = 0; i < piece.tool_call_count; i++, len++) TRUE(!strcmp(piece.tool_calls[i].name, "moo"));
    }
    CHECK(SHOHIN_DONE, code);
    TRUE(len > 0);
  }
  CHECK(SHOHIN_OK, shohin_chat_free(chat));
}

/* Names of the Hub: nothing is downloaded here. */
static void hub(void) {
  shohin_model *model = NULL;
  char path[64];
  size_t len;
  TRUE(!setenv("HF_HUB_OFFLINE", "1", 1) && !setenv("HF_HUB_CACHE", "/no/such/cache", 1));
  CHECK(SHOHIN_HUB, shohin_model_load("hf:someone/cow/moo.gguf", SHOHIN_CSTR, NULL, &model, &error));
  TRUE(strstr(error.message, "hf:someone/cow/moo.gguf"));
  CHECK(SHOHIN_OPTION, shohin_model_load("hf:cow", SHOHIN_CSTR, NULL, &model, &error));
  CHECK(SHOHIN_HUB, shohin_model_load("bonsai-1.7b", SHOHIN_CSTR, NULL, &model, &error));
  CHECK(SHOHIN_NULL, shohin_download(NULL, 1, NULL, NULL, path, sizeof path, &len, &error));
  CHECK(SHOHIN_NULL, shohin_download("a.gguf", 6, NULL, NULL, NULL, sizeof path, &len, &error));
  CHECK(SHOHIN_NULL, shohin_download("a.gguf", 6, NULL, NULL, path, sizeof path, NULL, &error));
  CHECK(SHOHIN_HUB, shohin_download("hf:a/b/c.gguf", SHOHIN_CSTR, NULL, NULL, path, sizeof path, &len, &error));
  CHECK(SHOHIN_SHORT_BUFFER, shohin_download("a.gguf", 6, NULL, NULL, NULL, 0, &len, &error));
  TRUE(len == 6);
  CHECK(SHOHIN_OK, shohin_download("a.gguf", 6, NULL, NULL, path, sizeof path, &len, &error));
  TRUE(len == 6 && !memcmp(path, "a.gguf", 6));
  TRUE(!model);
}

static void tools(const shohin_model *model, const char *path) {
  const shohin_text add = {"{\"name\": \"add\", \"parameters\": {\"type\": \"object\", \"properties\": "
                           "{\"a\": {\"type\": \"boolean\"}}, \"required\": [\"a\"]}}",
                           SHOHIN_CSTR};
  const shohin_text wrong[2] = {{"true", 4}, {"x\xff", 2}};
  shohin_text results[16];
  shohin_model_info info = {.size = sizeof info};
  shohin_piece piece = {.size = sizeof piece};
  shohin_model *able;
  shohin_chat *chat;
  shohin_chat_options options;
  size_t calls = 0;

  for (size_t i = 0; i < 16; i++) results[i] = wrong[0];
  CHECK(SHOHIN_OK, shohin_model_get_info(model, &info, &error));
  TRUE(!info.can_call);
  CHECK(SHOHIN_OK, shohin_chat_options_default(&options, sizeof options, &error));
  options.tools = &add;
  options.tool_count = 1;
  CHECK(SHOHIN_OK, shohin_chat_new(model, &options, &chat, &error));
  CHECK(SHOHIN_UNSUPPORTED, shohin_chat_send(chat, "Add!", 4, &error));
  CHECK(SHOHIN_OK, shohin_chat_free(chat));

  CHECK(SHOHIN_OK, shohin_model_load(path, SHOHIN_CSTR, NULL, &able, &error));
  CHECK(SHOHIN_OK, shohin_model_get_info(able, &info, &error));
  TRUE(info.can_call == 1);
  options.tool_choice = "sub";
  options.tool_choice_len = SHOHIN_CSTR;
  CHECK(SHOHIN_ARGUMENT, shohin_chat_new(able, &options, &chat, &error));
  options.tool_choice = "required";
  options.tool_choice_len = 8;
  options.temperature = 50;
  options.max_tokens = 150;
  CHECK(SHOHIN_OK, shohin_chat_new(able, &options, &chat, &error));
  CHECK(SHOHIN_OPTION, shohin_chat_speculate(chat, model, &error));
  CHECK(SHOHIN_OK, shohin_chat_send(chat, "Add!", 4, &error));
  while (shohin_chat_next(chat, &piece, &error) == SHOHIN_OK)
    for (size_t i = 0; i < piece.tool_call_count; i++, calls++) {
      const shohin_tool_call *call = &piece.tool_calls[i];
      TRUE(call->name_len == 3 && !strcmp(call->name, "add"));
      TRUE(call->arguments_len == strlen(call->arguments) && strstr(call->arguments, "\"a\""));
    }
  TRUE(error.code == SHOHIN_DONE && calls > 0 && !piece.tool_calls && !piece.tool_call_count);
  CHECK(SHOHIN_NULL, shohin_chat_send_results(NULL, results, 1, &error));
  CHECK(SHOHIN_NULL, shohin_chat_send_results(chat, NULL, 1, &error));
  CHECK(SHOHIN_HANDLE, shohin_chat_send_results((shohin_chat *)able, results, 1, &error));
  CHECK(SHOHIN_UTF8, shohin_chat_send_results(chat, wrong, 2, &error));
  TRUE(calls < 16);
  CHECK(SHOHIN_ARGUMENT, shohin_chat_send_results(chat, results, 0, &error));
  CHECK(SHOHIN_ARGUMENT, shohin_chat_send_results(chat, results, calls - 1, &error));
  CHECK(SHOHIN_ARGUMENT, shohin_chat_send_results(chat, results, calls + 1, &error));
  options.tool_choice = NULL;
  CHECK(SHOHIN_OK, shohin_chat_set_options(chat, &options, &error));
  CHECK(SHOHIN_OK, shohin_chat_send_results(chat, results, calls, &error));
  CHECK(SHOHIN_OK, shohin_chat_next(chat, &piece, &error));
  CHECK(SHOHIN_OK, shohin_chat_free(chat));
  CHECK(SHOHIN_OK, shohin_model_free(able));
}

/* Logits after some tokens; `like` has as many, and the result is whether they are the same. */
static int same_logits(const shohin_model *model, float *numbers, const float *like, size_t count) {
  const uint32_t ids[3] = {1, 2, 3};
  size_t len;
  CHECK(SHOHIN_OK, shohin_logits(model, ids, 3, numbers, count, &len, &error));
  return like && !memcmp(numbers, like, count * sizeof *numbers);
}

static void adapters(const char *path, const char *tools, const char *file) {
  shohin_model *model, *other, *adapted = NULL, *both;
  shohin_model_info info = {.size = sizeof info};
  shohin_chat *chat;
  size_t len, count, weights;
  unsigned char *bytes = read_file(file, &len);
  shohin_adapter some[2] = {{.path = file, .path_len = SHOHIN_CSTR, .scale = 0.5f},
                            {.bytes = bytes, .len = len, .scale = 0.25f}};
  const float not_a_number = strtof("nan", NULL);
  float *plain, *half, *found;

  CHECK(SHOHIN_OK, shohin_model_load(path, SHOHIN_CSTR, NULL, &model, &error));
  CHECK(SHOHIN_OK, shohin_model_load(tools, SHOHIN_CSTR, NULL, &other, &error));
  CHECK(SHOHIN_NULL, shohin_model_adapted(NULL, some, 2, &adapted, &error));
  CHECK(SHOHIN_NULL, shohin_model_adapted(model, NULL, 1, &adapted, &error));
  CHECK(SHOHIN_NULL, shohin_model_adapted(model, some, 2, NULL, &error));
  CHECK(SHOHIN_HANDLE, shohin_model_adapted((shohin_model *)&info, some, 2, &adapted, &error));
  CHECK(SHOHIN_ARGUMENT, shohin_model_adapted(model, some, SIZE_MAX / 8, &adapted, &error));
  some[1].path = "x";
  CHECK(SHOHIN_ARGUMENT, shohin_model_adapted(model, some, 2, &adapted, &error));
  TRUE(strstr(error.message, "adapter 2 has a path and bytes"));
  some[1].path = some[0].path = NULL;
  CHECK(SHOHIN_NULL, shohin_model_adapted(model, some, 2, &adapted, &error));
  TRUE(strstr(error.message, "adapter 1 has neither a path nor bytes"));
  some[0].path = "\xff";
  CHECK(SHOHIN_UTF8, shohin_model_adapted(model, some, 2, &adapted, &error));
  some[0].path = "no such adapter.gguf";
  CHECK(SHOHIN_IO, shohin_model_adapted(model, some, 2, &adapted, &error));
  some[0].path = path;
  TRUE(shohin_model_adapted(model, some, 1, &adapted, &error) > SHOHIN_OTHER && strstr(error.message, path));
  some[0].path = file;
  some[0].scale = not_a_number;
  TRUE(shohin_model_adapted(model, some, 1, &adapted, &error) > SHOHIN_OTHER);
  some[0].scale = 0.5f;
  some[1].len = len / 2;
  CHECK(SHOHIN_TRUNCATED, shohin_model_adapted(model, some, 2, &adapted, &error));
  TRUE(strstr(error.message, "adapter 2 in memory"));
  some[1].len = len;
  TRUE(shohin_model_adapted(other, some, 1, &adapted, &error) > SHOHIN_OTHER && strstr(error.message, file));
  TRUE(!adapted);
  CHECK(SHOHIN_OK, shohin_model_free(other));

  CHECK(SHOHIN_OK, shohin_model_get_info(model, &info, &error));
  count = info.vocab_size;
  weights = info.weight_bytes;
  TRUE(info.adapters == 0);
  plain = malloc(3 * count * sizeof *plain);
  TRUE(plain);
  half = plain + count;
  found = half + count;
  same_logits(model, plain, NULL, count);
  CHECK(SHOHIN_OK, shohin_model_adapted(model, NULL, 0, &adapted, &error));
  TRUE(same_logits(adapted, found, plain, count));
  CHECK(SHOHIN_OK, shohin_model_free(adapted));
  CHECK(SHOHIN_OK, shohin_model_adapted(model, some, 1, &adapted, &error));
  TRUE(!same_logits(adapted, half, plain, count));
  CHECK(SHOHIN_OK, shohin_model_get_info(adapted, &info, &error));
  TRUE(info.weight_bytes > weights && info.adapters == 1);
  CHECK(SHOHIN_OK, shohin_model_adapted(model, some, 2, &both, &error));
  CHECK(SHOHIN_OK, shohin_model_get_info(both, &info, &error));
  TRUE(info.adapters == 2);
  TRUE(!same_logits(both, found, half, count) && !same_logits(both, found, plain, count));
  CHECK(SHOHIN_OK, shohin_model_free(both));
  /* The same file from memory; without effect; one after the other. */
  some[1].scale = 0.5f;
  CHECK(SHOHIN_OK, shohin_model_adapted(model, some + 1, 1, &both, &error));
  memset(bytes, 0, len);
  TRUE(same_logits(both, found, half, count));
  CHECK(SHOHIN_OK, shohin_model_free(both));
  some[0].scale = 0;
  CHECK(SHOHIN_OK, shohin_model_adapted(model, some, 1, &both, &error));
  TRUE(same_logits(both, found, plain, count));
  CHECK(SHOHIN_OK, shohin_model_free(both));
  some[0].scale = -0.5f;
  CHECK(SHOHIN_OK, shohin_model_adapted(adapted, some, 1, &both, &error));
  /* Both outlive the model, which shared its weights. */
  TRUE(same_logits(model, found, plain, count));
  CHECK(SHOHIN_OK, shohin_model_free(model));
  TRUE(same_logits(adapted, found, half, count) && !same_logits(both, found, half, count));
  CHECK(SHOHIN_OK, shohin_model_free(adapted));
  CHECK(SHOHIN_OK, shohin_chat_new(both, NULL, &chat, &error));
  CHECK(SHOHIN_OK, shohin_model_free(both));
  CHECK(SHOHIN_OK, shohin_chat_free(chat));
  free(plain);
  free(bytes);
}

static int32_t count_steps(void *data, const shohin_teach_step *step) {
  uint64_t *steps = data;
  TRUE(step->size >= sizeof *step && step->step == ++*steps && step->loss > 0 && step->least >= 0);
  return *steps == 2 ? 7 : 0;
}

static void answers(const shohin_taught *taught, uint64_t steps) {
  shohin_taught_info info = {.size = sizeof info};
  CHECK(SHOHIN_NULL, shohin_taught_get_info(NULL, &info, &error));
  CHECK(SHOHIN_NULL, shohin_taught_get_info(taught, NULL, &error));
  CHECK(SHOHIN_HANDLE, shohin_taught_get_info((const shohin_taught *)&info, &info, &error));
  info.size = sizeof(size_t);
  CHECK(SHOHIN_SIZE, shohin_taught_get_info(taught, &info, &error));
  info.size = sizeof info;
  CHECK(SHOHIN_OK, shohin_taught_get_info(taught, &info, &error));
  TRUE(info.steps == steps && info.adapter_len > 4 && !memcmp(info.adapter, "GGUF", 4));
  TRUE(info.fact_count == 1 && info.wording_count == 2 && info.exam_count == 1 && info.is_learned <= 1);
  TRUE(!strcmp(info.facts->question.text, "What is the door code?") && info.facts->question.len == 22);
  TRUE(!strcmp(info.facts->expected.text, "4711") && strcmp(info.facts->before.text, "4711"));
  TRUE(info.facts->before.len == strlen(info.facts->before.text) && info.is_learned == info.facts->is_right);
  TRUE(!strcmp(info.wordings->question.text, "what is the door code"));
  TRUE(!strcmp(info.exam->question.text, "Five?") && !strcmp(info.exam->before.text, info.exam->expected.text));
}

static const shohin_text form = {"Which is the door code?", SHOHIN_CSTR};
static const shohin_text questions[5] = {{"One?", 4}, {"Two?", 4}, {"Three?", 6}, {"Four?", 5}, {"Five?", 5}};

/* What is refused before anything is computed. */
static void lessons(const shohin_model *model) {
  shohin_fact fact = {{"What is the door code?", SHOHIN_CSTR}, {"4711", 4}, &form, 1};
  shohin_taught *taught = NULL;
  shohin_teach_options options;

  CHECK(SHOHIN_NULL, shohin_teach_options_default(NULL, sizeof options, &error));
  CHECK(SHOHIN_SIZE, shohin_teach_options_default(&options, 3, &error));
  CHECK(SHOHIN_OK, shohin_teach_options_default(&options, sizeof options, &error));
  TRUE(options.steps > 1 && options.rank > 1 && options.rehearsals > 1 && options.learning_rate > 0);
  CHECK(SHOHIN_NULL, shohin_teach(NULL, &fact, 1, &options, NULL, NULL, &taught, &error));
  CHECK(SHOHIN_NULL, shohin_teach(model, NULL, 1, &options, NULL, NULL, &taught, &error));
  CHECK(SHOHIN_NULL, shohin_teach(model, &fact, 1, &options, NULL, NULL, NULL, &error));
  CHECK(SHOHIN_HANDLE, shohin_teach((shohin_model *)&options, &fact, 1, &options, NULL, NULL, &taught, &error));
  CHECK(SHOHIN_ARGUMENT, shohin_teach(model, &fact, 0, &options, NULL, NULL, &taught, &error));
  CHECK(SHOHIN_ARGUMENT, shohin_teach(model, &fact, SIZE_MAX / 8, &options, NULL, NULL, &taught, &error));
  options.size--;
  CHECK(SHOHIN_SIZE, shohin_teach(model, &fact, 1, &options, NULL, NULL, &taught, &error));
  options.size++;
  options.question_count = 5;
  CHECK(SHOHIN_NULL, shohin_teach(model, &fact, 1, &options, NULL, NULL, &taught, &error));
  options.questions = questions;
  options.name = "\xff";
  options.name_len = SHOHIN_CSTR;
  CHECK(SHOHIN_UTF8, shohin_teach(model, &fact, 1, &options, NULL, NULL, &taught, &error));
  options.name = NULL;
  fact.answer.len = 0;
  CHECK(SHOHIN_ARGUMENT, shohin_teach(model, &fact, 1, &options, NULL, NULL, &taught, &error));
  TRUE(strstr(error.message, "fact 1 has an empty text"));
  fact.answer.len = 4;
  fact.forms = NULL;
  CHECK(SHOHIN_NULL, shohin_teach(model, &fact, 1, &options, NULL, NULL, &taught, &error));
  fact.question.text = "\xff";
  CHECK(SHOHIN_UTF8, shohin_teach(model, &fact, 1, &options, NULL, NULL, &taught, &error));
  fact.question.text = NULL;
  CHECK(SHOHIN_NULL, shohin_teach(model, &fact, 1, &options, NULL, NULL, &taught, &error));
  CHECK(SHOHIN_NULL, shohin_taught_save(NULL, "x", SHOHIN_CSTR, &error));
  CHECK(SHOHIN_HANDLE, shohin_taught_save((const shohin_taught *)model, "x", SHOHIN_CSTR, &error));
  CHECK(SHOHIN_HANDLE, shohin_taught_free((shohin_taught *)model));
  CHECK(SHOHIN_OK, shohin_taught_free(NULL));
  TRUE(!taught);
}

static void teaching(const char *path, const char *directory) {
  const shohin_fact fact = {{"What is the door code?", SHOHIN_CSTR}, {"4711", 4}, &form, 1};
  shohin_model *model, *adapted;
  shohin_taught *taught = NULL;
  shohin_teach_options options;
  shohin_adapter made = {.path_len = SHOHIN_CSTR, .scale = 1};
  shohin_taught_info info = {.size = sizeof info};
  char file[1024];
  uint64_t steps = 0;

  CHECK(SHOHIN_OK, shohin_model_load(path, SHOHIN_CSTR, NULL, &model, &error));
  CHECK(SHOHIN_OK, shohin_teach_options_default(&options, sizeof options, &error));
  options.questions = questions;
  options.question_count = 5;
  options.rehearsals = SIZE_MAX;
  options.rank = 0;
  CHECK(SHOHIN_OPTION, shohin_teach(model, &fact, 1, &options, NULL, NULL, &taught, &error));
  options.rank = UINT32_MAX;
  CHECK(SHOHIN_OPTION, shohin_teach(model, &fact, 1, &options, NULL, NULL, &taught, &error));
  options.rank = 2;
  options.learning_rate = -1;
  CHECK(SHOHIN_UNSUPPORTED, shohin_teach(model, &fact, 1, &options, NULL, NULL, &taught, &error));
  options.learning_rate = 0.003;
  options.name = "door";
  options.name_len = 4;
  TRUE(!taught);

  /* Ended by the callback, and by the number of steps. */
  CHECK(SHOHIN_OK, shohin_teach(model, &fact, 1, &options, count_steps, &steps, &taught, &error));
  TRUE(steps == 2);
  answers(taught, 2);
  CHECK(SHOHIN_OK, shohin_taught_free(taught));
  options.steps = 1;
  CHECK(SHOHIN_OK, shohin_teach(model, &fact, 1, &options, NULL, NULL, &taught, &error));
  answers(taught, 1);

  /* What was taught is an adapter, in memory and in a file; a model with one is not taught. */
  snprintf(file, sizeof file, "%s/taught.gguf", directory);
  CHECK(SHOHIN_NULL, shohin_taught_save(taught, NULL, 0, &error));
  CHECK(SHOHIN_IO, shohin_taught_save(taught, "/no/such/directory/x", SHOHIN_CSTR, &error));
  CHECK(SHOHIN_OK, shohin_taught_save(taught, file, SHOHIN_CSTR, &error));
  made.path = file;
  CHECK(SHOHIN_OK, shohin_model_adapted(model, &made, 1, &adapted, &error));
  CHECK(SHOHIN_OPTION, shohin_teach(adapted, &fact, 1, NULL, NULL, NULL, &taught, &error));
  CHECK(SHOHIN_OK, shohin_model_free(adapted));
  CHECK(SHOHIN_OK, shohin_taught_get_info(taught, &info, &error));
  made.path = NULL;
  made.bytes = info.adapter;
  made.len = info.adapter_len;
  CHECK(SHOHIN_OK, shohin_model_adapted(model, &made, 1, &adapted, &error));
  CHECK(SHOHIN_OK, shohin_taught_free(taught));
  CHECK(SHOHIN_OK, shohin_model_free(adapted));
  CHECK(SHOHIN_OK, shohin_model_free(model));
}

int main(int argc, char **argv) {
  shohin_model *model;
  uint64_t words[4] = {1, 2, 3, 4};
  TRUE(argc == 6 || argc == 7);
  errors();
  loading(argv[1]);
  CHECK(SHOHIN_OK, shohin_model_load(argv[1], SHOHIN_CSTR, NULL, &model, &error));
  tokens(model, words);
  requests(model, argv[3]);
  tools(model, argv[4]);
  adapters(argv[1], argv[4], argv[5]);
  lessons(model);
  if (argc == 7) teaching(argv[6], argv[2]);
  hub();
  chats(model, argv[2], argv[3]);
  return 0;
}
