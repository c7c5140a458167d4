# Three images: `services` (relay, checker and the other `outbox` commands), `spark` (spark-submit with the Spark jobs and
# their jars, the driver of a cluster) and `demo` (Spark, Java and the flights too), which is the last one.
# The classic builder and BuildKit both build it; docs/containers.md tells of the arguments.
ARG PYTHON_IMAGE=python:3.12-slim


FROM ${PYTHON_IMAGE} AS python
# Certificates of this site's own authority, PEM, if pip and Maven are reached through one.
ARG CA_CERTIFICATES=""
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 \
    PATH=/opt/outbox/bin:$PATH
RUN if [ -n "$CA_CERTIFICATES" ]; then \
      printf '%s\n' "$CA_CERTIFICATES" > /usr/local/share/ca-certificates/site.crt && update-ca-certificates; \
    fi
RUN python -m venv /opt/outbox
WORKDIR /build


FROM python AS project
# Another package index, if there is one; here and below.
ARG PIP_INDEX_URL
COPY requirements-build.txt ./
RUN pip install --require-hashes --no-deps -r requirements-build.txt
COPY pyproject.toml README.md LICENSE ./
COPY services services
COPY outbox outbox
COPY relay relay
COPY checker checker
COPY spark_jobs spark_jobs
COPY stack stack
# Apart from what it needs, so that a change of the project is a small layer in both images.
RUN pip wheel --no-build-isolation --no-deps --wheel-dir /dist . ./services \
 && pip install --no-index --no-deps --prefix /project /dist/*.whl


FROM python AS services-packages
ARG PIP_INDEX_URL
COPY requirements-services.txt ./
RUN pip install --require-hashes --no-deps --only-binary :all: -r requirements-services.txt \
 && pip check && pip uninstall --yes --quiet pip setuptools


FROM ${PYTHON_IMAGE} AS services
LABEL org.opencontainers.image.title="kafka-transactional-outbox" \
      org.opencontainers.image.description="Relay and checker: transactional messages for Kafka and Postgres" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/outbox/bin:$PATH PYTHONUNBUFFERED=1
RUN useradd --uid 10001 --user-group --create-home --shell /usr/sbin/nologin outbox
COPY --from=services-packages /opt/outbox /opt/outbox
COPY --from=project /project /opt/outbox
WORKDIR /home/outbox
USER outbox
ENTRYPOINT ["outbox"]


FROM python AS demo-packages
ARG PIP_INDEX_URL
# pyspark comes as a source archive; what builds it is installed first.
COPY requirements-build.txt ./
RUN pip install --require-hashes --no-deps -r requirements-build.txt
COPY requirements.txt ./
RUN pip install --require-hashes --no-deps --no-build-isolation -r requirements.txt && pip check


FROM demo-packages AS jars
# Another Maven repository, if there is one.
ARG OUTBOX_MAVEN_MIRROR
ENV XDG_CACHE_HOME=/var/cache/outbox
COPY --from=project /project /opt/outbox
# Jars that cannot be fetched now are fetched when they are needed first.
RUN mkdir -p $XDG_CACHE_HOME && { outbox stack fetch || echo "this image has no jars"; }


FROM jars AS spark-files
ARG OUTBOX_MAVEN_MIRROR
# Without them the image is of no use: it is not built, and the last line says what could not be fetched.
RUN jars="$(outbox land jars)" \
 && mkdir -p /opt/spark/jars /opt/spark/conf && echo "$jars" | tr , '\n' | xargs -I{} cp {} /opt/spark/jars/ \
 && { echo "spark.jars $(ls -d /opt/spark/jars/*.jar | paste -sd,)"; \
      echo "spark.sql.extensions io.delta.sql.DeltaSparkSessionExtension"; \
      echo "spark.sql.catalog.spark_catalog org.apache.spark.sql.delta.catalog.DeltaCatalog"; \
    } > /opt/spark/conf/spark-defaults.conf \
 && cp -r "$(outbox land jars --java-home)" /opt/spark/java \
 && ln -s "$(python -c 'import pathlib, spark_jobs; print(pathlib.Path(spark_jobs.__file__).parent)')" /opt/spark/jobs


FROM ${PYTHON_IMAGE} AS spark
LABEL org.opencontainers.image.title="kafka-transactional-outbox, Spark driver" \
      org.opencontainers.image.description="spark-submit with the Spark jobs of kafka-transactional-outbox and their jars" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/outbox/bin:$PATH PYTHONUNBUFFERED=1 JAVA_HOME=/opt/spark/java SPARK_CONF_DIR=/opt/spark/conf
RUN useradd --uid 10001 --user-group --create-home --shell /usr/sbin/nologin outbox
COPY --from=demo-packages /opt/outbox /opt/outbox
COPY --from=spark-files /opt/spark /opt/spark
COPY --from=project /project /opt/outbox
WORKDIR /home/outbox
USER outbox
ENTRYPOINT ["spark-submit"]


FROM ${PYTHON_IMAGE} AS demo
LABEL org.opencontainers.image.title="kafka-transactional-outbox, demo" \
      org.opencontainers.image.description="Spark jobs and the flights demo of kafka-transactional-outbox" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/outbox/bin:$PATH PYTHONUNBUFFERED=1 XDG_CACHE_HOME=/var/cache/outbox
RUN useradd --uid 10001 --user-group --create-home --shell /usr/sbin/nologin outbox \
 && install -d -o outbox -g outbox /results
COPY --from=demo-packages /opt/outbox /opt/outbox
COPY --from=jars --chown=outbox:outbox /var/cache/outbox /var/cache/outbox
COPY --from=project /project /opt/outbox
COPY --chown=outbox:outbox examples /home/outbox/examples
WORKDIR /home/outbox
USER outbox
ENTRYPOINT ["outbox"]
