/* Shohin: small language models in C.
 *
 *     shohin_model *model;
 *     shohin_chat *chat;
 *     shohin_error error;
 *     shohin_piece piece = {.size = sizeof piece};
 *     if (shohin_model_load("sprout.gguf", SHOHIN_CSTR, NULL, &model, &error)) ...error.message...
 *     if (shohin_chat_new(model, NULL, &chat, &error)) ...
 *     if (shohin_chat_send(chat, "What does a cow say?", SHOHIN_CSTR, &error)) ...
 *     while (shohin_chat_next(chat, &piece, &error) == SHOHIN_OK) fputs(piece.text, stdout);
 *     shohin_chat_free(chat);
 *     shohin_model_free(model);
 *
 * Results. Every call returns a code: SHOHIN_OK, or why it failed. (Calls that cannot fail return a text.) A call that
 * fails changes nothing, unless its description says so. Its last argument, if it is not NULL, receives the code and a
 * sentence. No argument makes the library abort: NULL where something is expected is SHOHIN_NULL.
 *
 * Texts are UTF-8 with a length in bytes; SHOHIN_CSTR as the length means that a NUL ends the text. Texts and arrays that
 * are passed in are copied, or not used after the call.
 *
 * Buffers. Calls that fill a buffer write the required length, and SHOHIN_SHORT_BUFFER if there is less room; nothing else
 * is written then. A capacity of 0 with a buffer that is NULL asks for the length.
 *
 * Structs begin with `size`: set it to the size of the struct, which tells the library the version that the program was
 * compiled with: later versions add fields at the end. Other sizes, such as that of a pointer, are SHOHIN_SIZE. Options are
 * set to their defaults with shohin_..._options_default(&options, sizeof options, NULL).
 *
 * Handles. A call that loads a model, begins a chat or teaches writes its handle if it works, and leaves the variable as it
 * was otherwise. shohin_model_free, shohin_chat_free and shohin_taught_free free them, in any order; NULL is allowed. A handle
 * of another kind is SHOHIN_HANDLE, and mostly a freed one, too; but do not rely on that.
 *
 * Threads. There is no global state. A model may be used by any number of threads at once, until it is freed. A chat may
 * move between threads; while one uses it, calls by others, or by a callback, are SHOHIN_BUSY. Free a handle when no
 * other thread uses it. shohin_chat_interrupt may be called while another thread uses the chat, and by its callback.
 */
#ifndef SHOHIN_H
#define SHOHIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The length of a text that ends with a NUL. */
#define SHOHIN_CSTR SIZE_MAX

/* A text of an array. Later versions do not change this struct. */
typedef struct shohin_text {
  const char *text;
  size_t len; /* bytes, or SHOHIN_CSTR */
} shohin_text;

/* ---- Errors ---- */

/* Numbers and names (shohin_code_name) never change; later versions may add codes. */
typedef enum shohin_code {
  SHOHIN_OK = 0, /* It worked. */
  SHOHIN_DONE = 1, /* The reply has no further piece. */
  SHOHIN_NULL = 2, /* A pointer is NULL. */
  SHOHIN_HANDLE = 3, /* A handle is of another kind, or was freed. */
  SHOHIN_UTF8 = 4, /* A text is not UTF-8. */
  SHOHIN_SHORT_BUFFER = 5, /* A buffer is too short; the required length was written. */
  SHOHIN_BUSY = 6, /* The chat is in use, by another thread or by the caller of this callback. */
  SHOHIN_SIZE = 7, /* A struct's `size` is not one that this library knows. */
  SHOHIN_PANIC = 8, /* A bug in the library; the handle can only be freed. */
  SHOHIN_OTHER = 9, /* An error without a code of its own in this version. */
  SHOHIN_IO = 16, /* The system reported an error for a file. */
  SHOHIN_NOT_A_FILE = 17, /* A path that cannot be a model. */
  SHOHIN_THREADS = 18, /* The system refused to start threads. */
  SHOHIN_CONVERT = 19, /* A folder of another format cannot be converted. */
  SHOHIN_TRAIN = 20, /* A model cannot be taught like this. */
  SHOHIN_HUB = 21, /* A model of the Hugging Face Hub cannot be downloaded. */
  SHOHIN_TRUNCATED = 32, /* The input ends too early. */
  SHOHIN_LIMIT = 33, /* A count or length is over a limit. */
  SHOHIN_MALFORMED = 34, /* The input is malformed. */
  SHOHIN_DUPLICATE = 35, /* A name occurs twice. */
  SHOHIN_GRAMMAR = 36, /* A grammar is malformed. */
  SHOHIN_SNAPSHOT_DAMAGED = 37, /* A session file was changed or cut off. */
  SHOHIN_SNAPSHOT_FOREIGN = 38, /* A session file of another model or other options. */
  SHOHIN_MISSING_KEY = 39, /* A metadata key is missing. */
  SHOHIN_KEY_TYPE = 40, /* A metadata key has the wrong type. */
  SHOHIN_KEY_VALUE = 41, /* A metadata value is out of range. */
  SHOHIN_UNSUPPORTED = 42, /* This version does not support it. */
  SHOHIN_MISSING_TENSOR = 43, /* A tensor is missing. */
  SHOHIN_TENSOR_SHAPE = 44, /* A tensor has the wrong shape. */
  SHOHIN_TENSOR_TYPE = 45, /* A tensor has a type that cannot be used for it. */
  SHOHIN_TENSOR_RANGE = 46, /* A tensor's bytes are invalid. */
  SHOHIN_LENGTH = 47, /* Something has the wrong number of elements. */
  SHOHIN_OPTION = 48, /* An option is outside its range. */
  SHOHIN_ARGUMENT = 49, /* An argument is invalid. */
  SHOHIN_TOKEN = 50, /* A token is not in the vocabulary. */
  SHOHIN_CONTEXT_FULL = 51, /* The context cannot hold more tokens. */
  SHOHIN_MEMORY = 52, /* Memory could not be allocated. */
  SHOHIN_LOGITS = 53, /* The model's output is not finite. */
  SHOHIN_DEVICE = 54, /* A device, such as a GPU, failed. */
} shohin_code;

/* Why a call failed. Later versions do not change this struct. */
typedef struct shohin_error {
  int32_t code;      /* a shohin_code */
  char message[508]; /* UTF-8, with a NUL at its end; empty if the call did not fail */
} shohin_error;

/* The name of a code, such as "context_full"; NULL for a number that is not a code. */
const char *shohin_code_name(int32_t code);

/* The library's version, such as "0.1.0". */
const char *shohin_version(void);

/* ---- Models ---- */

typedef struct shohin_model shohin_model;

#define SHOHIN_KV_DEFAULT 0 /* SHOHIN_KV_F16 */
#define SHOHIN_KV_F32 1
#define SHOHIN_KV_F16 2
#define SHOHIN_KV_Q8 3
#define SHOHIN_KV_Q4 4
#define SHOHIN_KV_FP8_E4M3 5
#define SHOHIN_KV_FP8_E5M2 6

#define SHOHIN_DEVICE_BEST 0 /* a GPU if there is a suitable one, otherwise the CPU */
#define SHOHIN_DEVICE_CPU 1
#define SHOHIN_DEVICE_GPU 2 /* SHOHIN_UNSUPPORTED if the library was built without the feature `gpu` */

/* Options for loading a model. */
typedef struct shohin_load_options {
  size_t size;
  uint32_t threads;  /* 0: one per core */
  uint32_t context;  /* context of a chat in tokens, clamped to the model's; 0: 4096 */
  int32_t kv_format; /* format of the KV cache, SHOHIN_KV_... */
  int32_t device;    /* SHOHIN_DEVICE_... */
} shohin_load_options;

shohin_code shohin_load_options_default(shohin_load_options *options, size_t size, shohin_error *error);

/* Loads a GGUF file, a model in parts by the name of any of them, or a folder of Hugging Face (with the feature `teach`). `options`
 * may be NULL. The file is mapped: do not change it while the model is in use.
 *
 * hf:OWNER/REPOSITORY/FILE, or the name of a published model such as bonsai-1.7b, is a model of the Hugging Face Hub, unless there is
 * such a file: it is downloaded to the cache of the Hub's own tools if it is not there, and the variables HF_ENDPOINT, HF_TOKEN,
 * HF_HUB_CACHE and HF_HUB_OFFLINE of the environment apply. SHOHIN_UNSUPPORTED if the library was built without the feature `hub`, as
 * packages for phones are. */
shohin_code shohin_model_load(const char *path, size_t path_len, const shohin_load_options *options,
                              shohin_model **model, shohin_error *error);

/* Is told how far the download of a file is: the bytes that are there, and how many there will be, or 0. `file` is empty while it waits to
 * try again. A result other than 0 ends the download, which goes on from there the next time. It must return: no exception, no longjmp. */
typedef int32_t (*shohin_on_download)(void *user_data, const char *file, uint64_t have, uint64_t total);

/* Downloads the model of such a name as shohin_model_load does, and writes the path of its file, without a NUL at its end. A text that is
 * no name of the Hub is the path already. `on_download` may be NULL. SHOHIN_HUB if `on_download` ended it. */
shohin_code shohin_download(const char *name, size_t name_len, shohin_on_download on_download, void *user_data, char *path,
                            size_t capacity, size_t *path_len, shohin_error *error);

/* Loads a GGUF file that is in memory. The bytes are copied. */
shohin_code shohin_model_load_memory(const uint8_t *bytes, size_t len, const shohin_load_options *options,
                                     shohin_model **model, shohin_error *error);

/* As shohin_model_load_memory without a copy, for a file in read-only memory or one that the program has mapped. The bytes must
 * stay where they are, unchanged, until the model, all its chats and all that shohin_model_adapted made of it are freed. */
shohin_code shohin_model_load_in_place(const uint8_t *bytes, size_t len, const shohin_load_options *options,
                                       shohin_model **model, shohin_error *error);

/* Loads the small model that is built into the library. */
shohin_code shohin_model_load_built_in(const shohin_load_options *options, shohin_model **model,
                                       shohin_error *error);

/* Frees a model. Its chats go on: memory is freed with the last of them. */
shohin_code shohin_model_free(shohin_model *model);

typedef struct shohin_model_info {
  size_t size;
  size_t vocab_size;     /* tokens of the vocabulary: the length of logits */
  size_t embedding_size; /* the length of an embedding */
  size_t max_context;    /* the longest context it supports, in tokens */
  size_t context;        /* the context of its chats, in tokens */
  size_t weight_bytes;   /* bytes of the weights in memory */
  size_t threads;
  size_t can_think; /* 1 if it can reason before it answers, else 0 */
  size_t can_call;  /* 1 if it can call functions, else 0 */
  size_t adapters;  /* number of its adapters, see shohin_model_adapted */
} shohin_model_info;

shohin_code shohin_model_get_info(const shohin_model *model, shohin_model_info *info, shohin_error *error);

/* The tokens of a text, with the beginning-of-sequence token if the model uses one. Names of control tokens in the text
 * are plain text. */
shohin_code shohin_tokenize(const shohin_model *model, const char *text, size_t text_len, uint32_t *tokens,
                            size_t capacity, size_t *count, shohin_error *error);

/* The text of tokens, without control tokens. No NUL is written at its end. */
shohin_code shohin_detokenize(const shohin_model *model, const uint32_t *tokens, size_t count, char *text,
                              size_t capacity, size_t *text_len, shohin_error *error);

/* The embedding of a text, of length 1: the mean of the final hidden states, or the last one if the file says so. */
shohin_code shohin_embed(const shohin_model *model, const char *text, size_t text_len, float *vector,
                         size_t capacity, size_t *vector_len, shohin_error *error);

/* The embeddings of texts, one after the other: `count` times `embedding_size` numbers, each vector of length 1. */
shohin_code shohin_embed_texts(const shohin_model *model, const shohin_text *texts, size_t count, float *vectors,
                               size_t capacity, size_t *vectors_len, shohin_error *error);

/* The logits of the token after `tokens`. All are computed again with each call. */
shohin_code shohin_logits(const shohin_model *model, const uint32_t *tokens, size_t count, float *logits,
                          size_t capacity, size_t *logits_len, shohin_error *error);

/* ---- Chats ---- */

typedef struct shohin_chat shohin_chat;

#define SHOHIN_THINKING_OFF 0
#define SHOHIN_THINKING_ON -1 /* without limit; a number above 0 is the most tokens of reasoning */

#define SHOHIN_FORMAT_TEXT 0        /* any text */
#define SHOHIN_FORMAT_JSON_OBJECT 1 /* a JSON object */
#define SHOHIN_FORMAT_JSON_SCHEMA 2 /* a JSON value that matches the JSON Schema in `format_text` */
#define SHOHIN_FORMAT_REGEX 3       /* a text that the expression in `format_text` matches from beginning to end */
#define SHOHIN_FORMAT_GRAMMAR 4     /* a text of the grammar in `format_text`, in GBNF */
#define SHOHIN_FORMAT_CHOICE 5      /* one of the texts in `choices` */

#define SHOHIN_NO_LOGPROBS -1

/* Options of replies. */
typedef struct shohin_chat_options {
  size_t size;
  uint64_t seed;            /* the same seed gives the same reply, also by shohin_chat_retry; 0 by default */
  float temperature;        /* 0 always takes the most likely token */
  uint32_t top_k;           /* keeps the most likely tokens; 0 keeps all */
  float top_p;              /* keeps the most likely tokens with this much probability together; 1 keeps all */
  float min_p;              /* keeps tokens at least this likely, relative to the most likely one; 0 keeps all */
  float repetition_penalty; /* over 1, makes the last 64 tokens less likely */
  uint32_t max_tokens;      /* of a reply; 0: only the context limits it */
  int32_t thinking;         /* SHOHIN_THINKING_..., or the most tokens of reasoning */
  int32_t format;           /* of replies, SHOHIN_FORMAT_... */
  const char *format_text;  /* the schema, expression or grammar */
  size_t format_text_len;   /* bytes, or SHOHIN_CSTR */
  const shohin_text *stop;  /* texts that end a reply, and are not part of it */
  size_t stop_count;
  const shohin_text *tools; /* functions that the model may call, each described by a JSON text as in OpenAI's `tools` */
  size_t tool_count;
  const char *tool_choice;  /* NULL or "auto"; "required"; or the name of the function that must be called */
  size_t tool_choice_len;   /* bytes, or SHOHIN_CSTR */
  float presence_penalty;   /* subtracted from the logits of tokens that occurred among the last 64; 0 by default */
  float frequency_penalty;  /* subtracted from them for each time that they occurred; 0 by default */
  int32_t logprobs;         /* SHOHIN_NO_LOGPROBS, or of how many of the most likely tokens (0 to 20) log-probabilities are
                               measured beside that of the chosen one */
  int32_t describe_tools;   /* 1: models whose template has no tools get them described in the system message; 0: an error */
  const shohin_text *choices; /* for SHOHIN_FORMAT_CHOICE */
  size_t choice_count;
} shohin_chat_options;

shohin_code shohin_chat_options_default(shohin_chat_options *options, size_t size, shohin_error *error);

/* Begins a conversation, which has its own KV cache. `options` may be NULL. When the context is full, the oldest exchanges
 * are left out. */
shohin_code shohin_chat_new(const shohin_model *model, const shohin_chat_options *options, shohin_chat **chat,
                            shohin_error *error);

/* Frees a chat; SHOHIN_BUSY in its own callback. */
shohin_code shohin_chat_free(shohin_chat *chat);

/* The following calls, except shohin_chat_next, shohin_chat_next_answer, shohin_chat_interrupt, shohin_chat_get_messages and
 * shohin_chat_get_usage, first end a reply that is in progress. The
 * conversation keeps its text so far; a message whose reply ends before any text is not kept. */

/* Sets the options of the next replies. Numbers out of range are reported by the next send. */
shohin_code shohin_chat_set_options(shohin_chat *chat, const shohin_chat_options *options, shohin_error *error);

/* Starts over, with these instructions for the whole conversation, or with none if the text is empty. */
shohin_code shohin_chat_system(shohin_chat *chat, const char *text, size_t text_len, shohin_error *error);

/* Sends a message. The reply is computed by shohin_chat_next. */
shohin_code shohin_chat_send(shohin_chat *chat, const char *text, size_t text_len, shohin_error *error);

/* Starts over with the messages of another conversation: a JSON text, an array as in OpenAI's API. */
shohin_code shohin_chat_set_messages(shohin_chat *chat, const char *messages, size_t messages_len, shohin_error *error);

/* The messages so far, in the same form. A reply in progress is not among them. No NUL is written at its end. */
shohin_code shohin_chat_get_messages(const shohin_chat *chat, char *messages, size_t capacity, size_t *messages_len,
                                     shohin_error *error);

/* Sends messages in the same form, after those that there are. The reply is computed by shohin_chat_next. */
shohin_code shohin_chat_send_messages(shohin_chat *chat, const char *messages, size_t messages_len, shohin_error *error);

/* Begins the answer to a request in the form of OpenAI's chat completions, a JSON text. Its messages take the place of those
 * of the chat, whose options stay as they are: those of the answer are the request's alone. Tools are described where the model's
 * template has none, and without a `seed` each answer is another one. */
shohin_code shohin_chat_request(shohin_chat *chat, const char *request, size_t request_len, shohin_error *error);

/* Computes the next JSON text of the answer, which ends with a NUL and is valid until the next call for this chat: the whole of
 * it, or with `"stream": true` a chunk. SHOHIN_DONE, with an empty text, after the last one. */
shohin_code shohin_chat_next_answer(shohin_chat *chat, shohin_text *answer, shohin_error *error);

/* Sends what the functions returned that the last reply called, one text for each call; SHOHIN_ARGUMENT for more or fewer.
 * The reply is computed by shohin_chat_next. */
shohin_code shohin_chat_send_results(shohin_chat *chat, const shohin_text *results, size_t count,
                                     shohin_error *error);

/* Computes another reply to the last message, in the place of the last one: the same unless the options have changed, such as the
 * seed. It is read with shohin_chat_next. SHOHIN_ARGUMENT if there is no reply yet, or if the last message was not kept: send it again
 * then. */
shohin_code shohin_chat_retry(shohin_chat *chat, shohin_error *error);

/* Decodes with guesses from now on: the same replies (on a GPU but for near ties), faster where guesses are right. They come
 * from `draft`, a smaller model with the same vocabulary, or, if it is NULL, from what followed the last tokens where they
 * occurred before. */
shohin_code shohin_chat_speculate(shohin_chat *chat, const shohin_model *draft, shohin_error *error);

/* Continues tokens as plain text, read with shohin_chat_next; the conversation stays as it is. */
shohin_code shohin_chat_complete(shohin_chat *chat, const uint32_t *tokens, size_t count, shohin_error *error);

#define SHOHIN_REASON_NONE 0         /* the reply goes on */
#define SHOHIN_REASON_STOP 1         /* the model ended it */
#define SHOHIN_REASON_LENGTH 2       /* it has `max_tokens` tokens */
#define SHOHIN_REASON_CONTEXT_FULL 3 /* the context is full */
#define SHOHIN_REASON_CANCELLED 4    /* the caller stopped it */

#define SHOHIN_NO_TOKEN -1

/* A call of a function by the model. Later versions do not change this struct. */
typedef struct shohin_tool_call {
  const char *name; /* of the function, with a NUL at its end */
  size_t name_len;
  const char *arguments; /* a JSON text, with a NUL at its end */
  size_t arguments_len;
} shohin_tool_call;

/* A token and the natural logarithm of its probability. Later versions do not change this struct. */
typedef struct shohin_logprob {
  uint32_t token;
  float logprob;
} shohin_logprob;

/* A token of a reply, and the most likely ones in its place, best first. Later versions do not change this struct. */
typedef struct shohin_token_logprob {
  shohin_logprob chosen;
  const shohin_logprob *top;
  size_t top_count;
} shohin_token_logprob;

/* A piece of a reply. Its texts are whole characters, and valid until the next call for this chat. */
typedef struct shohin_piece {
  size_t size;
  const char *text;      /* for the reader, with a NUL at its end; may be empty */
  size_t text_len;       /* bytes, without the NUL */
  const char *reasoning; /* the model's reasoning, the same way */
  size_t reasoning_len;
  int32_t token;  /* that the model chose, or SHOHIN_NO_TOKEN */
  int32_t reason; /* why the reply ended with this piece, SHOHIN_REASON_... */
  const shohin_tool_call *tool_calls; /* calls that are now complete; answer them with shohin_chat_send_results */
  size_t tool_call_count;
  const shohin_token_logprob *logprobs; /* tokens whose text is now complete, if the options ask for `logprobs`; none of those that
                                           a stop text cut off */
  size_t logprob_count;
} shohin_piece;

/* Computes the next piece of the reply. SHOHIN_DONE, with an empty piece, after the last one, or if nothing was sent. After
 * an error the conversation is as it was before the message. */
shohin_code shohin_chat_next(shohin_chat *chat, shohin_piece *piece, shohin_error *error);

/* Ends the reply. Text that was held back, if any, is the last piece of shohin_chat_next. */
shohin_code shohin_chat_stop(shohin_chat *chat, shohin_error *error);

/* Ends the reply soon, from any thread: the computation of a long prompt ends, too. The piece with SHOHIN_REASON_CANCELLED
 * is then the last one. Nothing happens without a reply in progress. */
shohin_code shohin_chat_interrupt(shohin_chat *chat, shohin_error *error);

/* Receives a piece, valid during the call. A result other than 0 stops the reply. It must return: no exception, no
 * longjmp. */
typedef int32_t (*shohin_on_piece)(void *user_data, const shohin_piece *piece);

/* Sends a message, and calls `on_piece` with each piece of the reply. Returns when it has ended or was stopped. */
shohin_code shohin_chat_stream(shohin_chat *chat, const char *text, size_t text_len, shohin_on_piece on_piece,
                               void *user_data, shohin_error *error);

/* Of the last reply. */
typedef struct shohin_usage {
  size_t size;
  size_t prompt_tokens;
  size_t cached_tokens; /* prompt tokens that were in the KV cache */
  size_t reply_tokens;
  double prompt_seconds; /* to the first token; 0 before it */
  double reply_seconds;  /* from the first token to the end; 0 while a reply is in progress */
  size_t position;       /* tokens that the KV cache holds; 0 while a reply is in progress */
  size_t capacity;       /* most tokens that fit into it; 0 while a reply is in progress */
  size_t guesses_checked; /* of shohin_chat_speculate, in the whole conversation; 0 while a reply is in progress */
  size_t guesses_right;
} shohin_usage;

shohin_code shohin_chat_get_usage(const shohin_chat *chat, shohin_usage *usage, shohin_error *error);

/* Writes the conversation to a file, with the keys and values of its tokens. */
shohin_code shohin_chat_save(shohin_chat *chat, const char *path, size_t path_len, shohin_error *error);

/* Goes on with the conversation of such a file, or of one of `shohin chat --session`. The model must be the same, and
 * loaded with the same `kv_format`. */
shohin_code shohin_chat_open(shohin_chat *chat, const char *path, size_t path_len, shohin_error *error);

/* ---- Adapters ---- */

/* An adapter (LoRA), a GGUF file: its path or its bytes. Later versions do not change this struct. */
typedef struct shohin_adapter {
  const char *path;     /* NULL if the file is in memory */
  size_t path_len;      /* bytes, or SHOHIN_CSTR */
  const uint8_t *bytes; /* NULL if there is a path; copied */
  size_t len;
  float scale; /* 1 applies it as it was trained; 0 has no effect */
} shohin_adapter;

/* The same model with adapters, in addition to those that it has. Both share the weights and the threads, and run side by
 * side: the new one takes the memory of its adapters alone. Free each with shohin_model_free, in any order; a model without the
 * adapters is the one that they joined. An adapter of another model is the error of what does not fit, such as
 * SHOHIN_TENSOR_SHAPE; a model that was not loaded with SHOHIN_DEVICE_CPU, and runs on a GPU, is SHOHIN_OPTION. */
shohin_code shohin_model_adapted(const shohin_model *model, const shohin_adapter *adapters, size_t count,
                                 shohin_model **adapted, shohin_error *error);

/* A question and its answer. Later versions do not change this struct. */
typedef struct shohin_fact {
  shohin_text question;
  shohin_text answer;       /* learned word for word */
  const shohin_text *forms; /* other wordings of the question, which are taught, too */
  size_t form_count;
} shohin_fact;

/* How facts are taught. */
typedef struct shohin_teach_options {
  size_t size;
  uint64_t seed;                /* what the order of rehearsals follows from */
  double learning_rate;         /* the highest */
  uint32_t steps;               /* at most; it ends when all is learned */
  uint32_t rank;                /* columns between the two factors of the adapter */
  size_t rehearsals;            /* replies that are rehearsed in a step: more keep more of what the model said, and take longer */
  const shohin_text *questions; /* to rehearse the model's own answers to; every fifth is asked before and after instead, and
                                   not rehearsed. NULL: those that suit the built-in model */
  size_t question_count;
  const char *name; /* of the adapter; NULL: "taught" */
  size_t name_len;  /* bytes, or SHOHIN_CSTR */
} shohin_teach_options;

shohin_code shohin_teach_options_default(shohin_teach_options *options, size_t size, shohin_error *error);

/* What a step did. */
typedef struct shohin_teach_step {
  size_t size;
  uint64_t step; /* from 1 */
  double loss;   /* before it, of facts and rehearsals */
  double least;  /* before it, the probability of the least probable token of an answer */
} shohin_teach_step;

/* Is told each step, which is valid during the call. A result other than 0 ends the teaching: what was learned so far is kept.
 * It must return: no exception, no longjmp. */
typedef int32_t (*shohin_on_step)(void *user_data, const shohin_teach_step *step);

typedef struct shohin_taught shohin_taught;

/* Teaches a model facts: they become an adapter for it, and its own weights stay as they are. First the model answers all
 * questions, those to rehearse included, so that it keeps its answers to them; then the steps come; then it is asked again.
 * `options` and `on_step` may be NULL. SHOHIN_OPTION for a model that has adapters, and for a fact that is longer than the
 * context; SHOHIN_UNSUPPORTED if the library was built without the feature `teach`, as packages for phones are. */
shohin_code shohin_teach(const shohin_model *model, const shohin_fact *facts, size_t count,
                         const shohin_teach_options *options, shohin_on_step on_step, void *user_data,
                         shohin_taught **taught, shohin_error *error);

/* The answers to one question, texts with a NUL at their ends. Later versions do not change this struct. */
typedef struct shohin_answer {
  shohin_text question;
  shohin_text expected; /* what it should be now */
  shohin_text before;   /* what the model said before */
  shohin_text after;    /* what it says now */
  size_t is_right;      /* 1 if it is what it should be, word for word, else 0 */
} shohin_answer;

/* What a model was taught. All is valid until the handle is freed. */
typedef struct shohin_taught_info {
  size_t size;
  const uint8_t *adapter; /* for shohin_model_adapted */
  size_t adapter_len;
  size_t steps;
  size_t is_learned;             /* 1 if every fact is answered right, else 0 */
  const shohin_answer *facts;    /* to their questions, in their order */
  size_t fact_count;
  const shohin_answer *wordings; /* to two wordings of each that were not taught: in small letters, and as a second turn */
  size_t wording_count;
  const shohin_answer *exam;     /* to questions that were neither taught nor rehearsed, whose answers should be what they were */
  size_t exam_count;
} shohin_taught_info;

shohin_code shohin_taught_get_info(const shohin_taught *taught, shohin_taught_info *info, shohin_error *error);

/* Writes the adapter to a file, which only its owner can read if it is new, and which is replaced once all of the new one is on
 * disk. */
shohin_code shohin_taught_save(const shohin_taught *taught, const char *path, size_t path_len, shohin_error *error);

shohin_code shohin_taught_free(shohin_taught *taught);

/* ---- Without an operating system ----
 *
 * libshohin_embedded, for microcontrollers, has these calls, and of those above
 *
 *     shohin_code_name, shohin_version, shohin_load_options_default, shohin_chat_options_default,
 *     shohin_model_load_in_place, shohin_model_free, shohin_model_get_info,
 *     shohin_chat_new, shohin_chat_free, shohin_chat_system, shohin_chat_send, shohin_chat_next, shohin_chat_stop,
 *     shohin_chat_get_usage
 *
 * with these differences. Calls must not overlap, be it by threads or by interrupts. All memory is that of
 * shohin_use_memory; after shohin_chat_new nothing is allocated but the message of a call that fails, which is freed before the call
 * returns: leave 2 KiB for it. SHOHIN_KV_DEFAULT is SHOHIN_KV_Q8, unless the library was
 * built with the feature `cache-formats`. There is one thread, and no GPU; reasoning, formats of replies, stop texts,
 * tools and log-probabilities are SHOHIN_UNSUPPORTED. When the context is full, the conversation starts over with its instructions, and so it
 * does after an error of shohin_chat_next. Instructions and a message may have two bytes for each token of the context,
 * more are SHOHIN_LIMIT. Times are 0. */

/* Gives the library memory, once and before any other call; it must not be used for anything else. Too little of it is
 * SHOHIN_MEMORY, or ends in shohin_panicked, also where a call fails and there is no room for its message. */
shohin_code shohin_use_memory(void *memory, size_t len, shohin_error *error);

/* A GGUF file that is not in memory, such as one on an SD card, and the calls that read it. Set `size` to the size of the
 * struct. It is copied; what `user_data` points to must stay until the model and all its chats are freed. */
typedef struct shohin_storage {
  size_t size;
  uint64_t len;    /* bytes of the file */
  void *user_data; /* passed to the calls */
  /* Begins to read `len` bytes of the file, from `offset` on, into `buffer`, or reads them: 0, or the driver's number of the error,
   * which becomes a part of the message. The bytes are inside the file; neither `offset` nor `len` is a number of whole sectors.
   * `buffer` begins at a multiple of 64 bytes for rows of matrices, and anywhere for the header and vectors, which are read while
   * loading. With DMA, the library computes until it calls `wait`. After an error `wait` is not called, and the buffer must not be
   * written to any more. */
  int32_t (*start)(void *user_data, uint64_t offset, void *buffer, size_t len);
  /* Waits until they have been read: 0, or the number of the error. The buffer must not be written to afterwards. NULL if `start` reads
   * them. */
  int32_t (*wait)(void *user_data);
} shohin_storage;

/* Loads a GGUF file in storage, which must not change. The vocabulary is kept in memory; weights are read for each token of a
 * reply, and for each four of a prompt, through a window of `window` bytes, which is a part of each chat's memory. A read that fails is
 * SHOHIN_DEVICE; during a reply, the conversation starts over. */
shohin_code shohin_model_load_storage(const shohin_storage *storage, size_t window, const shohin_load_options *options,
                                      shohin_model **model, shohin_error *error);

/* Bytes of it that are in use, and the most that were. */
size_t shohin_memory_used(void);
size_t shohin_memory_peak(void);

/* Not a call: the program defines it. A bug in the library, or too little memory, while a model is loaded or a chat begins or for the
 * message of an error.
 * `message` ends with a NUL. It must not return. */
void shohin_panicked(const char *message, size_t len);

#ifdef __cplusplus
}
#endif

#endif
