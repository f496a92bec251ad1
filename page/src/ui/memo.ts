import { Component, type ComponentType, type FunctionComponent, h } from "preact";

/** Draw again only when a property has changed. (preact/compat has the same, and much else.) */
export function memo<P extends object>(Inner: FunctionComponent<P>): ComponentType<P> {
  return class Memo extends Component<P> {
    override shouldComponentUpdate(next: Readonly<P>): boolean {
      const now = this.props as Readonly<Record<string, unknown>>;
      return Object.entries(next).some(([name, value]) => now[name] !== value);
    }

    override render() {
      return h(Inner as FunctionComponent<object>, this.props);
    }
  };
}
