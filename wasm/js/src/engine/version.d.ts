/** Version of the package; set by the build. */
declare const PACKAGE_VERSION: string;
