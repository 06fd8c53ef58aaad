package javax.annotation;

/** Of jakarta.annotation-api, as generated clients use it: so they compile against the generator's jar alone. */
public @interface Generated {
    String[] value();

    String comments() default "";
}
