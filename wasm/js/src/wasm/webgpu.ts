// The module for WebGPU. A separate file, imported by its address, so that it is fetched only when used.
export { default } from "shohin-webgpu";
export * from "shohin-webgpu";
