/* Chats with a model: chat MODEL.gguf. Each line of the input is a message. */
#include <shohin.h>
#include <stdio.h>
#include <string.h>

static int failed(const shohin_error *error) {
  fprintf(stderr, "%s (%s)\n", error->message, shohin_code_name(error->code));
  return 1;
}

int main(int argc, char **argv) {
  shohin_error error;
  shohin_model *model;
  shohin_chat *chat;
  shohin_piece piece = {.size = sizeof piece};
  shohin_code code = SHOHIN_DONE;
  char line[4096];

  if (argc != 2) return fprintf(stderr, "usage: chat MODEL.gguf\n"), 2;
  if (shohin_model_load(argv[1], SHOHIN_CSTR, NULL, &model, &error)) return failed(&error);
  if (shohin_chat_new(model, NULL, &chat, &error)) return failed(&error);
  while (code == SHOHIN_DONE && fgets(line, sizeof line, stdin)) {
    line[strcspn(line, "\n")] = 0;
    if (shohin_chat_send(chat, line, SHOHIN_CSTR, &error)) return failed(&error);
    while ((code = shohin_chat_next(chat, &piece, &error)) == SHOHIN_OK) {
      fwrite(piece.text, 1, piece.text_len, stdout);
      fflush(stdout);
    }
    puts("");
  }
  shohin_chat_free(chat);
  shohin_model_free(model);
  return code == SHOHIN_DONE ? 0 : failed(&error);
}
