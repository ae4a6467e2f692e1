// Chats with a model: chat MODEL.gguf. Each line of the input is a message.
#include <iostream>
#include <memory>
#include <shohin.h>
#include <stdexcept>
#include <string>

static void check(shohin_code code, const shohin_error &error) {
  if (code != SHOHIN_OK) throw std::runtime_error(error.message);
}

static int32_t print(void *, const shohin_piece *piece) {
  std::cout.write(piece->text, piece->text_len).flush();
  return std::cout ? 0 : 1; // stops if nobody reads
}

int main(int argc, char **argv) try {
  if (argc != 2) throw std::runtime_error("usage: chat MODEL.gguf");
  shohin_error error;
  shohin_model *loaded = nullptr;
  check(shohin_model_load(argv[1], SHOHIN_CSTR, nullptr, &loaded, &error), error);
  std::unique_ptr<shohin_model, decltype(&shohin_model_free)> model(loaded, shohin_model_free);
  shohin_chat *begun = nullptr;
  check(shohin_chat_new(model.get(), nullptr, &begun, &error), error);
  std::unique_ptr<shohin_chat, decltype(&shohin_chat_free)> chat(begun, shohin_chat_free);
  for (std::string line; std::getline(std::cin, line); std::cout << "\n")
    check(shohin_chat_stream(chat.get(), line.data(), line.size(), print, nullptr, &error), error);
} catch (const std::exception &error) {
  std::cerr << error.what() << "\n";
  return 1;
}
