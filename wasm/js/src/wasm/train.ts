// The module that teaches. A separate file, imported by its address, so that it is fetched only when used.
export { default } from "shohin-train";
export * from "shohin-train";
