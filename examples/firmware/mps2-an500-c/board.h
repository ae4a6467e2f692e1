/* What the board provides: replace board.c and board.ld for another one. */
#ifndef BOARD_H
#define BOARD_H

#include <stddef.h>
#include <stdint.h>

/* The region of flash that begins with a GGUF file. */
extern const uint8_t model_start[], model_end[];

/* Opens the model file on the card, whose path is the program's argument; 0 if there is none. Sets its length. */
int card_open(uint64_t *len);

/* Reads bytes of it; 0 if all were read. */
int card_read(uint64_t offset, void *buffer, size_t len);

/* Prints bytes; SIZE_MAX if a NUL ends them. */
void print(const char *text, size_t len);

/* Reads a line without its end; longer ones are cut off. 0 at the end of the input. */
int read_line(char *line, size_t size);

/* Ends the program. */
void quit(int code);

#endif
